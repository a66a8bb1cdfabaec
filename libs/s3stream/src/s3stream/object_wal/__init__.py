"""Write-ahead log in the object store. It consists of slots: objects whose keys contain node, epoch and
sequence, and whose puts are create-only (docs/formats/object-wal.md).

`object_wal` is the writer, `walk` the reader of an abandoned log; `pacing` decides when to put;
`s3stream.takeover` recovers a log. Comments cite the rules R1 to R7 of
docs/design/object-wal.md#safety-rules; tests/models/object_wal.py shows why each is needed.
"""
