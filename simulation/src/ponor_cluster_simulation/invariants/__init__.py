"""Invariants of clusters: their list, and a ledger that checks every committed record.

The ledger has its own rules and shares no code with the services, so that it does not repeat their errors.
"""
