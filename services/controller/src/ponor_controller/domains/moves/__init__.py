"""Moves of partitions between brokers (docs/design/moves-and-failover.md#who-ends-a-move)."""
