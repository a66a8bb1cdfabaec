"""Compaction workers: replace many small objects by few that are sorted by stream.

The controller decides what is worth doing and who does it (docs/decisions/0026-compaction-tasks.md); s3stream plans and copies
(docs/decisions/0027-compaction-planning.md). This service is what lies between: the life of a task, its speed, its memory. Any number of processes may run; one that dies
loses its task to the next that asks, and what it wrote is collected (docs/decisions/0028-compactor-workers.md).
"""
