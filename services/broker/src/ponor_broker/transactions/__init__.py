"""The transaction coordinator: transactional ids, their producer ids and epochs, and the outcome of their
transactions (docs/design/transactions.md).

Handlers call `coordinator.py`, which finds the shard of an id. `shard.py` owns the ids of one partition of
`__transaction_state` and runs writes, timers and markers. `transaction.py` is the state machine of one id,
without I/O; `record_codec.py` has the format of its records. Two modules send requests to other brokers:
`marker_sender.py` for the coordinator, and `verification.py` for the leaders of partitions.
"""
