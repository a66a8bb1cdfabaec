"""Deterministic simulation: virtual time, and a disk, a network and an object store that fail as the real ones do.

One process runs a whole cluster; the same seed gives the same trace. Services are built by their own `app.py` on these ports, so what
is tested is what is shipped. Nothing imports this package but tests and tools.
"""
