"""Brokers that died: fenced, their partitions given to others, their write-ahead logs to be recovered by somebody (docs/design/moves-and-failover.md#failover)."""
