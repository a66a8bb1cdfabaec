"""Leases under which readers see the data as they were at one index."""
