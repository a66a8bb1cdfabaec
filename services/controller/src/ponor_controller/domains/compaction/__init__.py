"""Compaction: offer tasks, lease them to workers, and check the outputs."""
