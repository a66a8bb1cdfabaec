"""Brokers that are to be stopped: their partitions move to others, in waves (docs/design/moves-and-failover.md#who-ends-a-move)."""
