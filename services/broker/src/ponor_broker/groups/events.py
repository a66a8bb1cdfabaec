"""Events from clients for the group state machine. Timers and completed writes are methods of
`Membership`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ponor_broker.groups.member import JoinProtocol, RequestId

UNNUMBERED: Final = RequestId(0)
"""The number of a request to which the shard has not assigned a number yet."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup whose session timeout is within bounds.

    Args:
        member_id: empty for a member without an id.
        new_member_id: the id for a new member (`<client or instance id>-<uuid>`).
        rebalance_timeout_ms: the session timeout for version 0, which has no such field.
        requires_known_member_id: from version 4 on, a member must get an id before it joins (KIP-394).
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
    """The member that a request claims to be from. A generation of -1 means none."""

    member_id: str
    instance_id: str | None = None
    generation: int = -1


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup. Protocol type and name are None below version 5. `assignments` maps member
    ids to assignments; only the leader sends any.
    """

    claim: MemberClaim
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]
    request: RequestId = UNNUMBERED


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A LeaveGroup. An empty member id with an instance id means that an administrator removes a
    static member.
    """

    leaving: tuple[MemberClaim, ...]
    request: RequestId = UNNUMBERED
