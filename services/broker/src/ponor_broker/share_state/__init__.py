"""Durable state of share partitions (KIP-932): the share coordinator and the persister that its clients use.

`coordinator.py` is the entry point for handlers, `persister.py` for the other parts of the broker.
"""
