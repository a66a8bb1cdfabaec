"""Streams groups (KIP-1071): the members run a topology, whose tasks the coordinator assigns.

State machine without I/O: `membership.py` handles events, `state.py` is what the records contain, and
`configured_topology.py`, `reconciliation.py` and `task_assignor.py` are pure functions.
"""
