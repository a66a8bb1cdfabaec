"""Errors of the two clients. What the controller refuses is an `OperationError` of ponor_rpc."""

from __future__ import annotations


class NodeFencedError(Exception):
    """This process lost its node id: a newer process registered, or the controller fenced it. It must stop at once."""


class WrongClusterError(Exception):
    """The controllers, the object store and this node do not belong to one cluster; the message names both clusters and what to do."""


class SessionClosedError(Exception):
    """The session was closed on this side; the outcome of what was in flight is unknown."""


class OperationTimeoutError(Exception):
    """The deadline passed before the outcome was known.

    Attributes:
        sent: False = the operation never left and has no effect; True = it may still be carried out.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class OperationTooLargeError(ValueError):
    """An operation alone is larger than all that may be in flight; split it."""


class MetadataLagError(Exception):
    """The image did not reach the wanted index before the deadline."""


class ProtocolError(Exception):
    """The peer broke the protocol; the connection is given up and made anew."""


class NotLeaderError(ProtocolError):
    """The controller does not lead.

    Attributes:
        leader_address: HOST:PORT of the leader, as far as it knew; else empty.
    """

    def __init__(self, message: str, leader_address: str) -> None:
        super().__init__(message)
        self.leader_address = leader_address


class ImageDivergedError(ProtocolError):
    """The image and the controller's differ at the same index: one of the two is wrong. The image is replaced by a snapshot, and this is an alarm."""


class HistoryReplacedError(Exception):
    """A forced recovery began another history than the one that this process has acted upon. It must start again."""
