"""The `ponor` command: a local cluster of real processes, and tools that look at one.

This member starts services as separate processes and reads their metadata like any other subscriber; it holds no service logic.
"""
