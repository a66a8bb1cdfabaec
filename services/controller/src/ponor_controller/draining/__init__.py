"""Brokers that are to be stopped: their partitions move to others, in waves (docs/decisions/0021-partition-moves.md)."""
