"""Compaction of topics: `cleanup.policy` compact (docs/design/log-cleaner.md#compacted-topics).

The leader of a partition cleans it. `cleaner` is the entry point.
"""
