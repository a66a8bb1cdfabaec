"""Partitions on their way to another broker: what a move is made of, how it ends, and who ends it when its source does not (docs/design/moves-and-failover.md#who-ends-a-move)."""
