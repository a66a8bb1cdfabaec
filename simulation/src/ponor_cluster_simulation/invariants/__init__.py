"""Invariants: what must hold of a cluster at every moment, whatever is done to it.

What lives here: the list of them, and a ledger that follows every committed record and knows the rules by itself. It shares no code with the services, so that their mistakes are
not repeated here.
"""
