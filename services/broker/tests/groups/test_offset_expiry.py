"""Expiry of committed offsets: scenarios of one group, and tombstones after a restart."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import Group
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.membership import Membership, subscribed_topics
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset, GroupRecord, MemberRecord
from ponor_broker.groups.removal import expired_offsets
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import at_once

NO_MEMBER = MemberClaim("")
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


def subscription(*topics: str, version: int = 1) -> bytes:
    """Return a Java consumer's subscription: version, topics, user data, owned partitions."""
    names = b"".join(struct.pack(">h", len(name.encode())) + name.encode() for name in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">ii", -1, 0)


def group(
    state: GroupState, *, protocol_type: str = "consumer", reads: bytes = subscription("read")
) -> Group:
    membership = Membership(GroupSettings())
    made = Group("g", membership, quiet_since_ms=1_000)
    members = (MemberRecord("m", None, "c", "/h", 1, 1, reads, b""),) if state is GroupState.STABLE else ()
    membership.restore(GroupRecord(protocol_type, 1, "range", "m", 1_000, members))
    assert made.membership.state is state
    return made


def over_at(made: Group, committed: CommittedOffset, topic: str = "t") -> int | None:
    """Return the first millisecond at which the offset has expired, with a retention of 100 ms."""
    made.offsets.restore((topic, 0), committed)
    for now_ms in range(5_000):
        if expired_offsets(made, made.offsets.partitions(), now_ms=now_ms, retention_ms=100):
            return now_ms
    return None


def test_offsets_of_an_empty_group_expire_after_the_last_leave_or_commit() -> None:
    assert over_at(group(GroupState.EMPTY), CommittedOffset(1, commit_timestamp_ms=10)) == 1_100
    assert over_at(group(GroupState.EMPTY), CommittedOffset(1, commit_timestamp_ms=2_000)) == 2_100


def test_without_members_retention_starts_with_the_commit() -> None:
    simple = Group("g", Membership(GroupSettings()))
    assert over_at(simple, CommittedOffset(1, commit_timestamp_ms=10)) == 110


def test_a_stable_group_keeps_only_offsets_of_subscribed_topics() -> None:
    stable = group(GroupState.STABLE)
    assert over_at(stable, CommittedOffset(1, commit_timestamp_ms=10), "read") is None
    assert over_at(stable, CommittedOffset(1, commit_timestamp_ms=10), "left") == 110


@pytest.mark.parametrize("reads", [b"", b"\x00\x01\x00\x00\x00\x09no", subscription("t")[:-9]])
def test_a_stable_group_with_unreadable_subscriptions_keeps_all_offsets(reads: bytes) -> None:
    assert (
        over_at(group(GroupState.STABLE, reads=reads), CommittedOffset(1, commit_timestamp_ms=10), "t")
        is None
    )


def test_a_stable_group_of_another_protocol_keeps_all_offsets() -> None:
    connect = group(GroupState.STABLE, protocol_type="connect")
    assert over_at(connect, CommittedOffset(1, commit_timestamp_ms=10)) is None


@pytest.mark.parametrize("state", [GroupState.EMPTY, GroupState.STABLE])
def test_an_explicit_retention_time_replaces_the_configured_one(state: GroupState) -> None:
    short = CommittedOffset(1, commit_timestamp_ms=10, expire_timestamp_ms=40)
    assert over_at(group(state), short) == 40


def test_a_commit_in_flight_restarts_the_retention() -> None:
    simple = Group("g", Membership(GroupSettings()))
    simple.offsets.began([("t", 0)])
    assert over_at(simple, CommittedOffset(1, commit_timestamp_ms=10)) is None


@given(st.lists(st.lists(st.text(max_size=20), max_size=4), max_size=5), st.integers(0, 3))
def test_subscriptions_of_all_versions_are_read(topics: list[list[str]], version: int) -> None:
    written = [subscription(*names, version=version) for names in topics]
    assert subscribed_topics(written) == frozenset(name for names in topics for name in names)


@given(st.binary(max_size=60))
def test_any_bytes_of_a_subscription_are_handled(garbage: bytes) -> None:
    read = subscribed_topics([garbage])
    assert read is None or all(isinstance(name, str) for name in read)


# --- with the coordinator: what is left after a restart


async def join_reading(
    world: Any, *topics: str, group_id: str = "g", session_ms: int = 1_800_000
) -> MemberClaim:
    """A group with one stable member whose session does not end."""
    request = JoinRequest(
        member_id="",
        instance_id="static",
        client_id="c",
        client_host="/h",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(JoinProtocol("range", subscription(*topics)),),
        requires_known_member_id=False,
        supports_skipping_assignment=True,
    )
    join = asyncio.ensure_future(world.coordinator.join_group(group_id, request))
    await world.clock.pass_ms(3_000)
    joined = await join
    claim = MemberClaim(joined.member_id, "static", joined.generation)
    synced = await world.coordinator.sync_group(
        group_id, SyncRequest(claim, None, None, {claim.member_id: b"all"})
    )
    assert synced.error is ErrorCode.NONE
    return claim


def now(world: Any, offset: int) -> CommittedOffset:
    return CommittedOffset(offset, commit_timestamp_ms=world.clock.wall_ms())


async def stay_alive(world: Any, claim: MemberClaim, ms: int) -> None:
    for _ in range(ms // 1_200_000 + 1):
        assert world.coordinator.heartbeat("g", claim) is ErrorCode.NONE
        await world.clock.pass_ms(1_200_000)


async def test_offsets_of_an_unsubscribed_topic_expire_in_a_stable_group(
    world: Any,
) -> None:
    coordinator = world.coordinator
    world.topics["left"] = (world.topics["t"][0], 1)
    member = await join_reading(world, "t")
    await coordinator.commit_offsets("g", member, {("t", 0): now(world, 1), ("left", 0): now(world, 2)})
    await stay_alive(world, member, WEEK_MS - HOUR_MS)
    assert len(coordinator.fetch_offsets("g", None)) == 2
    await stay_alive(world, member, 2 * HOUR_MS)
    assert [row[0] for row in coordinator.fetch_offsets("g", None)] == [("t", 0)]
    await world.kill()
    coordinator = await world.start()
    assert [row[0] for row in coordinator.fetch_offsets("g", None)] == [("t", 0)]


async def test_old_offsets_are_kept_for_the_retention_after_the_last_member_left(
    world: Any,
) -> None:
    coordinator = world.coordinator
    member = await join_reading(world, "t")
    await coordinator.commit_offsets("g", member, {("t", 0): now(world, 1)})
    await stay_alive(world, member, 2 * WEEK_MS)
    partition = world.open[coordinator.shards.partition_of("g")]
    partition.is_slow = True  # that the group is empty cannot be written yet, and counts all the same
    await coordinator.leave_group("g", (member,))
    await world.clock.pass_ms(2 * HOUR_MS)
    partition.is_slow = False
    partition.sync()
    await world.clock.pass_ms(WEEK_MS - 3 * HOUR_MS)
    assert len(coordinator.fetch_offsets("g", None)) == 1
    await world.kill()
    coordinator = await world.start()
    await world.clock.pass_ms(HOUR_MS // 2)
    assert len(coordinator.fetch_offsets("g", None)) == 1
    await world.clock.pass_ms(HOUR_MS)
    assert at_once(coordinator.list_groups()) == (ErrorCode.NONE, [])
    await world.kill()
    assert at_once((await world.start()).list_groups()) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_a_clock_jump_moves_the_expiry_by_the_same_time(world: Any, jump_ms: int) -> None:
    coordinator = world.coordinator
    member = await join_reading(world, "t")
    await coordinator.commit_offsets("g", member, {("t", 0): now(world, 1)})
    await coordinator.commit_offsets("alone", NO_MEMBER, {("t", 0): now(world, 1)})
    world.clock.wall_ahead_ms = jump_ms
    assert coordinator.heartbeat("g", member) is ErrorCode.NONE, "sessions do not follow the wall clock"
    await stay_alive(world, member, HOUR_MS)
    assert len(at_once(coordinator.list_groups())[1]) == 2
    await stay_alive(world, member, WEEK_MS - 2 * HOUR_MS - jump_ms)
    assert len(coordinator.fetch_offsets("alone", None)) == 1
    await stay_alive(world, member, 2 * HOUR_MS)
    assert coordinator.fetch_offsets("alone", None) == []
    assert coordinator.fetch_offsets("g", [("t", 0)])[0][1] is not None
