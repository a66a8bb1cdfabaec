"""Faults: drawn from the seed before a run begins, executed by an injector; a replay may execute only some of
them.
"""
