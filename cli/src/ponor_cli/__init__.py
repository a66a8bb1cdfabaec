"""The `ponor` command: runs a local cluster of processes, and operates any cluster.

It starts services as separate processes and reads metadata as a subscriber. It contains no service logic.
"""
