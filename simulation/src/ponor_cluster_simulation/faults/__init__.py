"""Faults: drawn from the seed before a run begins, as a list that can be replayed whole or in part.

What lives here: the kinds of fault, how they are drawn, how they are done to a cluster and taken back, and how a failing list is made smaller.
"""
