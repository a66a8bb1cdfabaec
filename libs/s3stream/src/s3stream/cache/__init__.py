"""Caches of indexes and data blocks that were read from objects. Both are bounded by bytes."""
