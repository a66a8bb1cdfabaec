"""The write-ahead log in the object store: slots under keys of node, epoch and sequence, put if absent (docs/formats/object-wal.md).

`object_wal` is the writer, `walk` the reader of a log whose owner is gone, `pacing` decides when to put. What a recovery does with what it reads is
`s3stream.takeover`'s. The rules R1 to R7 that comments name are those of docs/design/object-wal.md#safety-rules; tests/models/object_wal.py shows what each is for.
"""
