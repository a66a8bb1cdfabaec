"""One member of a classic group: its join data, and its requests that wait for an answer."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final, NewType

RequestId = NewType("RequestId", int)
"""Identifies a waiting request; assigned by the shard."""

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""Protocol type of consumers, whose subscriptions can be decoded."""
MEMBER_BYTES: Final = 2_000
"""Memory of a member without its names, subscriptions and assignment: measured, rounded up."""
PROTOCOL_BYTES: Final = 300
"""Memory of a member's protocol without its name and subscription: measured, rounded up."""
PROTOCOLS_MAX: Final = 1_000
"""Protocols that a member may offer. Clients offer one for each of their assignors."""


@dataclass(frozen=True, slots=True)
class JoinProtocol:
    """An assignment protocol that a member offers, with its opaque subscription."""

    name: str
    metadata: bytes

    @property
    def size_bytes(self) -> int:
        """Memory of the protocol."""
        return PROTOCOL_BYTES + len(self.name) + len(self.metadata)


def member_bytes(client_id: str, instance_id: str | None, protocols: Iterable[JoinProtocol]) -> int:
    """Return the memory of a member without its assignment."""
    names = len(client_id) + len(instance_id or "")
    return MEMBER_BYTES + names + sum(protocol.size_bytes for protocol in protocols)


@dataclass(slots=True)
class Member:
    """A member. At most one JoinGroup and one SyncGroup of it wait at any time."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]
    assignment: bytes = b""
    awaiting_join: RequestId | None = None
    awaiting_sync: RequestId | None = None
    is_new: bool = False
    """Whether the member has not completed a join yet. It cannot send heartbeats before, so a timer limits
    its join."""

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the member waits. The member then sends no heartbeats, because clients send
        one request at a time.
        """
        return self.awaiting_join is not None or self.awaiting_sync is not None

    @property
    def size_bytes(self) -> int:
        """Memory of the member."""
        return member_bytes(self.client_id, self.instance_id, self.protocols) + len(self.assignment)

    def vote(self, candidates: Container[str]) -> str:
        """Return the protocol that the member prefers among those that all members support."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise AssertionError(f"member {self.member_id} supports none of the candidate protocols")

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """Return the member's subscription for a protocol; empty if the member does not offer the
        protocol.
        """
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""
