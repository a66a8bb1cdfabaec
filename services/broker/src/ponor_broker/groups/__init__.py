"""Consumer groups: Kafka's classic group protocol and committed offsets.

From the wire inwards: `handlers/groups/` translate requests; `coordinator.py` finds the shard of a group;
`shard.py` owns the groups of one partition of `__consumer_offsets` and runs timers and writes;
`membership.py` (with `rebalance.py` and `roster.py`) is the state machine, without any I/O; `offsets_log.py`
and `record_codec.py` are what is durable. Nothing here knows the wire's messages.
"""
