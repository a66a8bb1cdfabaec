"""A segmented journal on one disk: group commit, chained CRCs, proof of sync, recycled segments.

The broker's write-ahead log and the controller's record log are journals
(docs/design/storage-and-write-path.md#one-journal). Entries are opaque bytes. docs/formats/journal.md
specifies the format.
"""
