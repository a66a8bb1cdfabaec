"""Compaction workers: replace many small objects by a few large ones that are sorted by stream.

The controller assigns tasks (docs/design/compaction.md#tasks), and s3stream plans and copies
(docs/design/compaction.md#plans). This service manages a task's lease, rate and memory. Any number of
processes may run. When one crashes, another process leases its task, and garbage collection deletes the
objects that the crashed process wrote (docs/design/compaction.md#workers).
"""
