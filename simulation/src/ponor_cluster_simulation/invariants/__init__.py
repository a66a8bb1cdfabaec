"""Invariants of clusters: their list, and a ledger that checks every committed record with its own rules.

The ledger shares no code with the services, so that it does not repeat their errors.
"""
