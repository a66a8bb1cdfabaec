"""The change of a group with members between the classic and the consumer protocol, as pure functions.

    upgrade    each classic member keeps its assignment, and the generation is its member epoch
    downgrade  each classic member keeps the partitions that it may use or must revoke, and the group epoch is
               the generation

A member that is at the group's epoch therefore continues to commit and to send heartbeats with the same
number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ponor_kafka.errors import KafkaWireError

from ponor_broker.groups.consumer.assignment import CurrentAssignment, united
from ponor_broker.groups.consumer.embedded_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from ponor_broker.groups.consumer.member import ClassicPart, ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.topics import ImageTopics, existing, hash_of
from ponor_broker.groups.member import Member
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import GroupRecord
from ponor_broker.groups.settings import GroupSettings


class UpgradeRefusedError(Exception):
    """The classic group cannot become a consumer group; the text is for the member that joins."""


class GroupMigration:
    """Converts groups."""

    def __init__(self, settings: GroupSettings, of_members: ConsumerSettings, topics: ImageTopics) -> None:
        self._settings = settings
        self._of_members = of_members
        self._topics = topics

    def upgraded(self, group_id: str, classic: Membership) -> list[ConsumerEntry]:
        """Return the records of a consumer group with the members of a classic group.

        Raises:
            UpgradeRefusedError: the policy or the members do not allow it.
        """
        if not classic:
            return []
        refused = f"Cannot upgrade classic group {group_id} to consumer group because"
        if not self._of_members.migration.upgrades:
            raise UpgradeRefusedError(f"{refused} online upgrade is disabled.")
        if not classic.is_of_consumers:
            raise UpgradeRefusedError(f"{refused} the group does not use the consumer embedded protocol.")
        if len(classic) > min(self._of_members.migrated_members_max, self._of_members.members_max):
            raise UpgradeRefusedError(f"{refused} the group size exceeds the consumer group maximum size.")
        try:
            return list(self._records(group_id, classic))
        except KafkaWireError:
            raise UpgradeRefusedError(f"{refused} the embedded consumer protocol is malformed.") from None

    def _records(self, group_id: str, classic: Membership) -> Iterator[ConsumerEntry]:
        epoch = max(classic.generation, 1)
        subscriptions = {
            member.member_id: self._subscription(classic, member) for member in classic.members()
        }
        held = self._held(classic, subscriptions)
        for member in classic.members():
            subscription = subscriptions[member.member_id]
            key = MemberKey(group_id, member.member_id)
            yield MemberEntry(
                key,
                ConsumerMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=subscription.rack_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    topics=subscription.topics,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    classic=ClassicPart(member.session_timeout_ms, member.protocols),
                ),
            )
            own = held[member.member_id]
            target = {topic_id: frozenset(indexes) for topic_id, indexes in own.items()}
            yield TargetEntry(TargetKey(group_id, member.member_id), target)
            assigned = {topic_id: dict.fromkeys(sorted(indexes), epoch) for topic_id, indexes in own.items()}
            current = CurrentAssignment(epoch, epoch, assigned=assigned)
            yield CurrentEntry(CurrentKey(group_id, member.member_id), current)
        names = (subscription.topics for subscription in subscriptions.values())
        known = existing(self._topics, frozenset().union(*names))
        yield EpochEntry(EpochKey(group_id), GroupEpoch(epoch, hash_of(known)))
        yield TargetEpochEntry(TargetEpochKey(group_id), TargetEpoch(epoch))

    def _subscription(self, classic: Membership, member: Member) -> Subscription:
        chosen = member.metadata_for(classic.protocol_name) or member.protocols[0].metadata
        return decode_subscription(chosen, self._topics)

    def _held(
        self, classic: Membership, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, dict[bytes, set[int]]]:
        """Return the partitions of each member. An assignor of the clients may assign a partition twice: its
        first owner keeps it.
        """
        claims = [
            (member.member_id, decode_assignment(member.assignment, self._topics))
            for member in classic.members()
        ]
        if classic.state is not GroupState.STABLE:
            # A second rebalance removes the assignments before the first one, while cooperative members
            # continue to use their partitions.
            claims += [(member_id, subscription.owned) for member_id, subscription in subscriptions.items()]
        taken: dict[bytes, set[int]] = {}
        held: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in subscriptions}
        for member_id, partitions in claims:
            for topic_id, indexes in partitions.items():
                free = indexes - taken.setdefault(topic_id, set())
                taken[topic_id] |= free
                if free:
                    held[member_id].setdefault(topic_id, set()).update(free)
        return held

    def downgraded(self, contents: ConsumerState) -> tuple[Membership, GroupRecord]:
        """Return a classic group with the members of a consumer group, and its record."""
        membership = Membership(self._settings)
        members = [self._classic_member(contents, member) for member in contents.members.values()]
        return membership, membership.adopt(members, contents.group_epoch)

    def _classic_member(self, contents: ConsumerState, member: ConsumerMember) -> Member:
        assert member.classic is not None
        current = contents.current_of(member.member_id)
        return Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.classic.protocols,
            assignment=encode_assignment(
                united(current.assigned, current.revoking), self._topics, member.classic.protocol.metadata
            ),
        )
