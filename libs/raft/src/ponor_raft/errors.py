"""Errors of the Raft core."""

from __future__ import annotations


class NotLeaderError(Exception):
    """This replica is not the leader, or is transferring leadership."""


class ProposalsFullError(Exception):
    """Too many uncommitted proposals; wait for commits."""


class MembershipChangeError(Exception):
    """The membership change is not allowed now; the message gives the reason and the remedy."""


class TransferError(Exception):
    """Leadership cannot be transferred; the message gives the reason."""
