"""Consumer groups: Kafka's classic group protocol and committed offsets.

From the wire inwards: `handlers/groups/` translate requests; `coordinator.py` finds the shard of a group;
`shard.py` owns the groups of one partition of `__consumer_offsets` and runs timers and writes;
`membership.py` (with `rebalance.py` and `roster.py`) is the state machine, without any I/O; `record_codec.py`
is the format of what is durable. Log, timers and the lives of shards are in `coordination/`. Nothing here
imports the wire's messages.
"""
