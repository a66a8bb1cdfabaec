"""Partitions on streams.

A partition consists of a Meta stream (state that survives a move), a Data stream (Kafka's record
batches), a Time stream (created when first needed) and, once transactions exist, a Txn stream.

`partition_manager` follows the image; `handoff/` opens, moves and closes partitions; `partition` is
one open partition, on `state/` and `log/`; `maintenance/` and `cleaning/` run in the background.
"""
