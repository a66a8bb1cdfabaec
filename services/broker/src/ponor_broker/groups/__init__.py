"""Consumer groups: Kafka's classic group protocol and committed offsets.

`handlers/groups/` translates requests. `coordinator.py` finds the shard of a group. `shard.py` owns the
groups of one partition of `__consumer_offsets` and runs timers and writes. `membership.py` (with
`rebalance.py` and `roster.py`) is the state machine, without I/O; `record_codec.py` has the format of its
records. `coordination/` contains the log, the timers, and the loading of shards. This package imports no
messages of the Kafka protocol.
"""
