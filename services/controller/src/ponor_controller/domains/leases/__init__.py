"""Snapshot leases: the data as of one index stays in the store while a reader needs it."""
