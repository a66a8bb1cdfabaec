"""Code that the group coordinator and the transaction coordinator share.

`shards.py` follows the partitions of one internal topic and finds the shard of a key. `record_log.py` appends
entries to a partition and replays them (`record_format.py`: their encoding), and `log_rewrite.py` keeps the
log short. `timers.py` and `readiness.py` hold deadlines and waiting requests; `ports.py` has the interfaces
to the rest of the broker.
"""
