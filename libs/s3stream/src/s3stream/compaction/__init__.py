"""Compaction: merges many small objects into few large ones without decoding records.

Planning is pure (`planning.py`, `copy_planning.py`); execution moves bytes through a bounded buffer
(`executor.py`). The controller chooses the objects; the worker leases and commits tasks
(docs/design/compaction.md#plans).
"""
