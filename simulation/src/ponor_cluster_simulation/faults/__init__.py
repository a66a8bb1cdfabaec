"""Faults. They are drawn from the seed before a run begins, and an injector executes them. A replay can
execute a subset of them.
"""
