"""Partitions on streams.

A partition consists of a Meta stream (state that survives a move), a Data stream (Kafka's record batches), a
Time stream (created when first needed) and a Txn stream (created before the first abort of a transaction).

`partition_manager` follows the image, and `open_partitions` holds the open partitions; `handoff/` opens,
moves and closes them. `partition` implements one partition with `state/` and `log/`. `maintenance/` and
`cleaning/` run in the background.
"""
