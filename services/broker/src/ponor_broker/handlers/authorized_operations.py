"""Authorized operations (KIP-430): without ACLs, all of them."""

from __future__ import annotations

from typing import Final

OPERATIONS_UNKNOWN: Final = -(1 << 31)
"""The request did not ask for them."""
TOPIC_OPERATIONS: Final = 3576
CLUSTER_OPERATIONS: Final = 8096
