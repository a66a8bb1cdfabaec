"""Compaction: offers of tasks, their leases, and the check of their outputs."""
