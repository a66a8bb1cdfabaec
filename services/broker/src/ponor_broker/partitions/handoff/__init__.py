"""Partitions that change their broker: the source, the target, opening, and requests that wait in the
meantime.
"""
