"""The members of a group: leader, instance ids, assigned member ids, and the vote for a protocol.

Bookkeeping only, without the state of a rebalance and without instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ponor_broker.groups.member import JoinProtocol, Member, RequestId


class Roster:
    """The members of one group, in order of arrival."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._pending: dict[str, None] = {}
        self._support: Counter[str] = Counter()
        self._waiting = 0
        self.size_bytes = 0
        """Memory of the members' subscriptions and assignments, for the broker's budget."""
        self.protocol_type: str | None = None
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, member_id: str) -> Member | None:
        """Return a member by id."""
        return self._members.get(member_id)

    def static_member_id(self, instance_id: str | None) -> str | None:
        """Return the member id that holds an instance id now."""
        return None if instance_id is None else self._static.get(instance_id)

    # assigned member ids whose owners have not joined (KIP-394)

    @property
    def pending_count(self) -> int:
        """Number of assigned ids whose owners have not joined."""
        return len(self._pending)

    def pending_ids(self) -> tuple[str, ...]:
        """Return the assigned ids whose owners have not joined."""
        return tuple(self._pending)

    def is_pending(self, member_id: str) -> bool:
        """Return whether this id was assigned and not used yet."""
        return member_id in self._pending

    def add_pending(self, member_id: str) -> None:
        """Note an assigned id."""
        assert member_id not in self._members
        self._pending[member_id] = None

    def remove_pending(self, member_id: str) -> None:
        """Remove an assigned id that was used or has expired."""
        self._pending.pop(member_id, None)

    # --- members

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one determines the protocol type and leads."""
        assert member.member_id not in self._members
        if not self._members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self._static
            self._static[member.instance_id] = member.member_id
        self._members[member.member_id] = member
        self._pending.pop(member.member_id, None)
        self._count(member.protocols, 1)
        self._waiting += member.awaiting_join is not None
        self.size_bytes += member.size_bytes
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, the oldest remaining member leads."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._count(member.protocols, -1)
        self._waiting -= member.awaiting_join is not None
        self.size_bytes -= member.size_bytes
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def replace_static(self, member: Member, new_member_id: str) -> None:
        """Give a returning static member a new id; it keeps its position, leadership and assignment."""
        assert member.instance_id is not None
        old_member_id = member.member_id
        assert self._static[member.instance_id] == old_member_id
        member.member_id = new_member_id
        # Rebuilt to keep the order, on which votes and the next leader depend.
        self._members = {m.member_id: m for m in self._members.values()}
        self._static[member.instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id

    def set_client(self, member: Member, client_id: str, protocols: tuple[JoinProtocol, ...]) -> None:
        """Replace the client id and the protocols of a member that has rejoined."""
        self._count(member.protocols, -1)
        self.size_bytes -= member.size_bytes
        member.client_id = client_id
        member.protocols = protocols
        self.size_bytes += member.size_bytes
        self._count(protocols, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set a member's assignment."""
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def hold_join(self, member: Member, request: RequestId) -> None:
        """Note that the member waits in this JoinGroup from now on."""
        assert self._members.get(member.member_id) is member
        self._waiting += member.awaiting_join is None
        member.awaiting_join = request

    def release_join(self, member: Member) -> RequestId | None:
        """Return the JoinGroup in which the member waits, which the caller answers; None if it does not
        wait.
        """
        request, member.awaiting_join = member.awaiting_join, None
        if request is not None and self._members.get(member.member_id) is member:
            self._waiting -= 1
        return request

    def _count(self, protocols: Sequence[JoinProtocol], step: int) -> None:
        for name in dict.fromkeys(protocol.name for protocol in protocols):
            self._support[name] += step
            if not self._support[name]:
                del self._support[name]

    # --- rebalance

    @property
    def all_joined(self) -> bool:
        """Whether all members wait in a join, and no assigned id is pending."""
        return not self._pending and self._waiting == len(self._members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined; return False if no member has."""
        leader = self._members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self._members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def supports(self, protocol_type: str, protocols: Sequence[JoinProtocol]) -> bool:
        """Return whether a member with these protocols could join."""
        if not self._members:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self._support[protocol.name] == len(self._members) for protocol in protocols
        )

    def select_protocol(self) -> str:
        """Return the winning protocol: candidates are those that all members support, each member
        votes for its most preferred one, and the oldest member breaks a tie.
        """
        assert self._members
        candidates = {name for name, count in self._support.items() if count == len(self._members)}
        votes = Counter(member.vote(candidates) for member in self._members.values())
        # `max` returns the first of equals, and votes are in the order of members
        return max(votes, key=votes.__getitem__)

    def validate(self) -> None:
        """Check the invariants, for tests."""
        assert all(member_id == member.member_id for member_id, member in self._members.items())
        assert not self._pending.keys() & self._members.keys()
        named = {m.instance_id: m.member_id for m in self._members.values() if m.instance_id is not None}
        assert named == self._static
        assert (self.leader_id is None) == (not self._members)
        assert self.leader_id is None or self.leader_id in self._members
        assert self._waiting == sum(m.awaiting_join is not None for m in self._members.values())
        assert self.size_bytes == sum(m.size_bytes for m in self._members.values())
        counted: Counter[str] = Counter()
        for member in self._members.values():
            counted.update(dict.fromkeys((p.name for p in member.protocols), 1))
        assert counted == self._support
        if self._members:
            assert any(count == len(self._members) for count in counted.values()), (
                "no protocol is supported by all members"
            )
