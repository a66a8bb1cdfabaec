"""Snapshot leases: readers keep the data of one index."""
