"""Brokers that died: fenced, their partitions given to others, their write-ahead logs to be recovered by somebody (docs/decisions/0022-failover.md)."""
