"""Compaction: many small objects become few large ones, without decoding a record.

Planning is pure (`planning.py`, `copy_planning.py`); execution moves bytes through a budgeted buffer (`executor.py`, `copying.py`). Which objects are
worth it, leases and commits are other people's business: the controller's and the worker's (docs/design/compaction.md#plans).
"""
