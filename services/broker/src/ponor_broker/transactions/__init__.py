"""The transaction coordinator: transactional ids, their producer ids and epochs, and the outcome of their
transactions (docs/design/transactions.md).

From the wire inwards: handlers call `coordinator.py`, which finds the shard of an id; `shard.py` owns the ids
of one partition of `__transaction_state` and runs writes, timers and markers; `transaction.py` is the state
machine of one id, without any I/O; `record_codec.py` is the format of what is durable. Nothing here sends a
request: `ports.py` has the interface for markers.
"""
