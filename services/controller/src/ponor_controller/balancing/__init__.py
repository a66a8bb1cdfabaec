"""Balancing: what brokers carry, whether that is even, and which partitions move so that it becomes so (docs/design/balancing.md)."""
