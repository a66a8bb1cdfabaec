"""Deterministic simulation: virtual time, and a disk, a network and an object store with faults.

The services run unchanged on these ports of `ponor_runtime`. The same seed gives the same trace.
"""
