"""Partitions on streams.

A partition consists of a Meta stream (state that survives a move), a Data stream (Kafka's record
batches), a Time stream (created when first needed) and, once transactions exist, a Txn stream.

`partition_manager` follows the image, and `open_partitions` holds the open partitions; `handoff/` opens,
moves and closes them; `partition` is one of them, on `state/` and `log/`; `maintenance/` and `cleaning/` run
in the background.
"""
