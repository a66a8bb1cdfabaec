"""Compaction of topics: `cleanup.policy` compact (docs/decisions/0029-log-cleaner.md).

What lives here: when a partition is cleaned, what is kept, and how that is written to its `.cleaned` streams. The owner of a partition cleans it; nothing
but `cleaner` is started from outside.
"""
