"""Compaction workers: replace many small objects by few that are sorted by stream.

The controller decides what is worth doing and who does it (docs/design/compaction.md#tasks); s3stream plans and copies
(docs/design/compaction.md#plans). This service is what lies between: the life of a task, its speed, its memory. Any number of processes may run; one that dies
loses its task to the next that asks, and what it wrote is collected (docs/design/compaction.md#workers).
"""
