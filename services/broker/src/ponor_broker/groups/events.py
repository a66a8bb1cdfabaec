"""What comes into the group state machine from clients. Timers and finished writes are plain methods of `Membership`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ponor_broker.groups.member import JoinProtocol, RequestId

UNNUMBERED: Final = RequestId(0)
"""Of a request that the coordinator has not taken in yet; it fills number and new member id."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup whose session timeout is within bounds.

    Args:
        member_id: empty for a member that has no id yet.
        new_member_id: the id that it gets if it is given one now (`<client or instance id>-<uuid>`).
        rebalance_timeout_ms: the session timeout for version 0, which has no such field.
        requires_known_member_id: from version 4 on, an id must be taken before joining (KIP-394).
        supports_skipping_assignment: from version 9 on (KIP-814).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    requires_known_member_id: bool
    supports_skipping_assignment: bool
    new_member_id: str = ""
    request: RequestId = UNNUMBERED


@dataclass(frozen=True, slots=True)
class MemberClaim:
    """Who a request says it comes from. A generation of -1 is none."""

    member_id: str
    instance_id: str | None = None
    generation: int = -1


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup. Protocol type and name are None below version 5; the leader's assignments are by member id."""

    claim: MemberClaim
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]
    request: RequestId = UNNUMBERED


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A Heartbeat."""

    claim: MemberClaim
    request: RequestId = UNNUMBERED


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A LeaveGroup. An empty member id with an instance id is an administrator who removes a static member."""

    leaving: tuple[MemberClaim, ...]
    request: RequestId = UNNUMBERED
