"""Errors of sessions and subscriptions. A refusal by a controller is an `OperationError` of ponor_rpc."""

from __future__ import annotations


class NodeFencedError(Exception):
    """This process lost its node id: a newer process registered, or the controller fenced it. It must stop at
    once.
    """


class WrongClusterError(Exception):
    """The controllers, the object store and this node do not belong to the same cluster; the message names
    both clusters and the remedy.
    """


class SessionClosedError(Exception):
    """This process closed the session; the outcome of operations in flight is unknown."""


class OperationTimeoutError(Exception):
    """The deadline passed before the outcome was known.

    Attributes:
        sent: whether the operation was sent. If so, it may still be executed; if not, it has no effect.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class OperationTooLargeError(ValueError):
    """One operation is larger than the limit of bytes in flight; split it."""


class MetadataLagError(Exception):
    """The image did not reach the required index before the deadline."""


class ProtocolError(Exception):
    """The peer violated the protocol; the client reconnects."""


class NotLeaderError(ProtocolError):
    """The controller does not lead.

    Attributes:
        leader_address: HOST:PORT of the leader; empty if the controller does not know it.
    """

    def __init__(self, message: str, leader_address: str) -> None:
        super().__init__(message)
        self.leader_address = leader_address


class ImageDivergedError(ProtocolError):
    """The image and the controller's image differ at the same index.

    The client logs an error and replaces the image by a snapshot.
    """


class HistoryReplacedError(Exception):
    """After a forced recovery the log may lack batches on which this process has acted. The process must
    restart.
    """
