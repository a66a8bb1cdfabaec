"""Compaction of topics: `cleanup.policy` compact (docs/design/log-cleaner.md#compacted-topics).

What lives here: when a partition is cleaned, what is kept, and how that is written to its `.cleaned` streams. The owner of a partition cleans it; nothing
but `cleaner` is started from outside.
"""
