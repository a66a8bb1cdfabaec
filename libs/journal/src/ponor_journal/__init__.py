"""A segmented journal on one disk: group commit, chained CRCs, proof of sync, recycled segments.

The broker's write-ahead log and the controller's record log are both journals (docs/design/storage-and-write-path.md#one-journal). What an entry means
is the owner's business: nothing here knows streams or records. The bytes are specified in docs/formats/journal.md.
"""
