"""Partitions on streams: log meta, producer state, leader epochs, and the manager that opens and closes them.

A partition is a Meta stream (what must survive a move), a Data stream (Kafka's record batches), a Time stream (made when first needed)
and, once transactions exist, a Txn stream. Kafka's wire is known here only as record batch headers; requests are handled elsewhere.
"""
