"""Garbage collection: deletes objects that nothing refers to.

The controller decides which objects are garbage. This service claims them, deletes them and confirms the
deletion. Any number of processes may run. If a process crashes, its claim expires and another process claims
the objects.
"""
