"""One member of a classic group: what it told when it joined, and which of its requests wait for an answer."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final, NewType

RequestId = NewType("RequestId", int)
"""Names one request that waits for its answer; drawn by the shard, meaningless to the state machine."""

MEMBER_BYTES: Final = 2_000
"""What a member takes in memory beside its protocols and its assignment: measured, rounded up."""
PROTOCOL_BYTES: Final = 300
"""What a protocol of a member takes in memory beside its name and its subscription: measured, rounded up."""
PROTOCOLS_MAX: Final = 1_000
"""Protocols that a member may offer. Clients offer one for each of their assignors."""


@dataclass(frozen=True, slots=True)
class JoinProtocol:
    """A way of assigning partitions that a member offers, with its opaque subscription."""

    name: str
    metadata: bytes

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return PROTOCOL_BYTES + len(self.name) + len(self.metadata)


def protocols_bytes(protocols: Iterable[JoinProtocol]) -> int:
    """What the protocols of a member take in memory."""
    return sum(protocol.size_bytes for protocol in protocols)


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
    """Has never finished a join: it does not know its id, or cannot heartbeat yet, so that its join itself is timed."""

    @property
    def is_waiting(self) -> bool:
        """A request of it is held: it cannot be asked to heartbeat (clients send one request at a time)."""
        return self.awaiting_join is not None or self.awaiting_sync is not None

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return MEMBER_BYTES + protocols_bytes(self.protocols) + len(self.assignment)

    def vote(self, candidates: Container[str]) -> str:
        """The first of its protocols, in its own order of preference, that all members support."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise AssertionError(f"member {self.member_id} supports none of the candidates")

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """Its subscription under a protocol; empty when it does not offer it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""
