"""Errors of a partition's own streams."""

from __future__ import annotations


class PartitionCorruptError(Exception):
    """State on a Meta or Data stream violates its format; the message names stream, key and rule."""
