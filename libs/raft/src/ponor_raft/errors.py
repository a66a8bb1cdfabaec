"""Why the core refused something."""

from __future__ import annotations


class NotLeaderError(Exception):
    """This replica does not lead, or is handing leadership over."""


class ProposalsFullError(Exception):
    """Too much is proposed and not committed; wait for commits."""


class MembershipChangeError(Exception):
    """The change is not allowed now; the message says why and what to do."""


class TransferError(Exception):
    """Leadership cannot go there; the message says why."""
