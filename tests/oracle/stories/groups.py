"""The classic group protocol: joins, syncs, heartbeats, leaves, and errors."""

from __future__ import annotations

from typing import Any

from ponor_kafka.messages.heartbeat import HeartbeatRequest
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ponor_kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity

from tests.oracle.asking import assignment, join, subscription, sync
from tests.oracle.narrator import Narrator
from tests.oracle.story import story

TOPIC = "a-topic"


def member(k: Narrator, group: str, name: str, **settings: Any) -> str:
    """A new member requests a member id (KIP-394)."""
    answer = k.ask(join(group, **settings), 5, f"{name} asks for an id", on=name)
    return str(answer.member_id)


def alone(k: Narrator, group: str, **settings: Any) -> tuple[str, int]:
    """Create a synced group with one member; return its id and generation."""
    me = member(k, group, "first", **settings)
    joined = k.ask(join(group, me, **settings), 5, "joins alone, and leads")
    k.ask(sync(group, joined.generation_id, me, {me: assignment(TOPIC, 0)}), 3, "gives itself partition 0")
    return me, joined.generation_id


@story("One member joins, syncs, sends heartbeats and leaves, in every version")
def group_alone(k: Narrator) -> None:
    for version in range(10):
        group = f"alone-{version}"
        me = ""
        if version >= 4:
            me = k.ask(join(group), version, "asks for an id").member_id
        joined = k.ask(join(group, me), version, "joins")
        me, generation = joined.member_id, joined.generation_id
        beat = HeartbeatRequest(group, generation, me)
        k.ask(beat, min(version, 4), "sends a heartbeat before it synced")
        k.ask(sync(group, generation, me, {me: assignment(TOPIC, 0, 1)}), min(version, 5), "syncs")
        k.ask(beat, min(version, 4), "beats")
        leave = (
            LeaveGroupRequest(group, me)
            if version < 3
            else LeaveGroupRequest(group, "", [MemberIdentity(me)])
        )
        k.ask(leave, min(version, 5), "leaves")
        k.ask(beat, min(version, 4), "sends a heartbeat after it left")


@story("Two members: the second makes the first join again; the leader assigns; one leaves")
def group_of_two(k: Narrator) -> None:
    group = "of-two"
    leader, generation = alone(k, group)
    k.ask(HeartbeatRequest(group, generation, leader), 3, "a heartbeat without a rebalance")
    second = member(k, group, "second")
    waiting = k.send(join(group, second), 5, "the second joins and waits", on="second")
    while k.quietly(HeartbeatRequest(group, generation, leader), 3).error_code == 0:
        pass
    k.ask(HeartbeatRequest(group, generation, leader), 3, "the first detects a rebalance")
    joined = k.ask(join(group, leader), 5, "the first joins again")
    k.take(waiting)
    follows = k.send(
        sync(group, joined.generation_id, second), 3, "the second waits for its assignment", on="second"
    )
    given = {leader: assignment(TOPIC, 0), second: assignment(TOPIC, 1)}
    k.ask(sync(group, joined.generation_id, leader, given), 3, "the leader assigns")
    k.take(follows)
    k.ask(sync(group, joined.generation_id, second), 3, "the second syncs again", on="second")
    k.ask(sync(group, joined.generation_id - 1, second), 3, "with the old generation", on="second")
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity(second)]), 4, "the second leaves", on="second")
    k.ask(HeartbeatRequest(group, joined.generation_id, leader), 3, "the first detects a rebalance again")
    k.ask(join(group, leader), 5, "and is alone")


@story("Unknown members, generations and groups")
def group_strangers(k: Narrator) -> None:
    group = "strangers"
    me, generation = alone(k, group)
    for beat, what in (
        (HeartbeatRequest(group, generation + 1, me), "a future generation"),
        (HeartbeatRequest(group, -1, me), "generation -1"),
        (HeartbeatRequest(group, generation, "stranger"), "an unknown member"),
        (HeartbeatRequest(group, generation, ""), "no member id"),
        (HeartbeatRequest("strangers-none", generation, me), "an unknown group"),
        (HeartbeatRequest("", generation, me), "no group id"),
    ):
        k.ask(beat, 3, f"heartbeat: {what}")
    k.ask(sync(group, generation + 1, me), 3, "syncs: a future generation")
    k.ask(sync(group, generation, "stranger"), 3, "syncs: an unknown member")
    k.ask(sync("strangers-none", generation, me), 3, "syncs: an unknown group")
    k.ask(sync("", generation, me), 3, "syncs: no group id")
    k.ask(join(group, "stranger"), 5, "joins: an unknown member")
    k.ask(join("strangers-none", "stranger"), 5, "joins: an unknown member, an unknown group")
    k.ask(join("", ""), 5, "joins: no group id")
    k.ask(LeaveGroupRequest(group, "stranger"), 2, "leaves: an unknown member")
    k.ask(LeaveGroupRequest("strangers-none", "stranger"), 2, "leaves: an unknown group")
    k.ask(
        LeaveGroupRequest(group, "", [MemberIdentity("stranger"), MemberIdentity("", "no-instance")]),
        4,
        "two unknown members leave",
    )
    k.ask(LeaveGroupRequest(group, "", []), 4, "no member leaves")
    k.ask(LeaveGroupRequest("", "", [MemberIdentity("stranger")]), 4, "leaves: no group id")


@story("Joins with invalid parameters")
def group_joins_refused(k: Narrator) -> None:
    for session_ms in (0, 5_999, 1_800_001, -1):
        k.ask(join("join-sessions", session_ms=session_ms), 5, f"a session of {session_ms} ms")
    group = "join-protocols"
    alone(k, group)
    k.ask(join(group, protocol_type="connect"), 5, "another type of protocol", on="other")
    k.ask(join(group, protocols=("sticky",)), 5, "no protocol in common", on="other")
    k.ask(join(group, protocols=()), 5, "no protocols", on="other")
    k.ask(join(group, protocol_type=""), 5, "no type of protocol", on="other")
    k.ask(join("join-new", protocols=()), 5, "no protocols, a new group")
    k.ask(join("join-new", protocol_type=""), 5, "no type of protocol, a new group")
    k.ask(join("join-new", rebalance_ms=-5), 3, "a negative rebalance timeout")


@story("The type and name of a protocol must be repeated when syncing")
def group_sync_protocol(k: Narrator) -> None:
    group = "sync-protocol"
    me = member(k, group, "first")
    generation = k.ask(join(group, me), 7, "joins").generation_id
    k.ask(sync(group, generation, me, protocol_type="connect"), 5, "another type")
    k.ask(sync(group, generation, me, protocol="sticky"), 5, "another protocol")
    k.ask(sync(group, generation, me, protocol_type=None, protocol=None), 5, "neither")
    k.ask(sync(group, generation, me, {"stranger": b"x"}), 5, "an assignment for an unknown member")


@story("The protocol that all members support and most prefer")
def group_protocol_vote(k: Narrator) -> None:
    group = "vote"
    first = member(k, group, "first", protocols=("sticky", "range", "roundrobin"))
    second = member(k, group, "second", protocols=("sticky", "range"))
    k.call("member_id", first, "the first")
    k.call("member_id", second, "the second")
    one = k.ask(join(group, first, protocols=("sticky", "range", "roundrobin")), 5, "joins alone")
    k.ask(
        sync(group, one.generation_id, first, {first: b""}, protocol="sticky"),
        3,
        "syncs with an empty assignment",
    )
    waiting = k.send(join(group, second, protocols=("sticky", "range")), 5, "the second joins", on="second")
    while k.quietly(HeartbeatRequest(group, one.generation_id, first), 3).error_code == 0:
        pass
    k.ask(join(group, first, protocols=("sticky", "range", "roundrobin")), 5, "the first joins again")
    k.take(waiting)


@story("Static members return without a rebalance; a duplicate is fenced")
def group_static(k: Narrator) -> None:
    group = "static"
    first = k.ask(join(group, instance="one"), 5, "instance one joins, with no id before")
    me, generation = first.member_id, first.generation_id
    k.ask(sync(group, generation, me, {me: assignment(TOPIC, 0)}, instance="one"), 3, "syncs")
    k.ask(HeartbeatRequest(group, generation, me, "one"), 3, "beats")
    again = k.ask(join(group, instance="one"), 5, "instance one starts again", on="again")
    k.ask(
        sync(group, again.generation_id, again.member_id, instance="one"), 3, "gets what it had", on="again"
    )
    k.ask(HeartbeatRequest(group, generation, me, "one"), 3, "the old process is fenced")
    k.ask(sync(group, generation, me, instance="one"), 3, "the old process syncs")
    k.ask(join(group, me, instance="one"), 5, "the old process joins")
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity(me, "one")]), 4, "the old process leaves")
    k.ask(HeartbeatRequest(group, again.generation_id, again.member_id, "two"), 3, "an unknown instance")
    k.ask(HeartbeatRequest(group, again.generation_id, again.member_id), 3, "the member without its instance")
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity("", "one")]), 4, "removed by its instance id")
    k.ask(HeartbeatRequest(group, again.generation_id, again.member_id, "one"), 3, "and gone")


@story("A static leader returns; from version 9 on the response tells it to skip the assignment")
def group_static_leader(k: Narrator) -> None:
    group = "static-leader"
    first = k.ask(join(group, instance="one"), 9, "joins")
    given = {first.member_id: assignment(TOPIC, 0)}
    k.ask(sync(group, first.generation_id, first.member_id, given, instance="one"), 5, "syncs")
    k.ask(join(group, instance="one"), 9, "comes back")
    k.ask(join(group, instance="one", topics=("another",)), 9, "comes back with another subscription")


@story("A leader that rejoins starts a new generation; an unchanged follower does not")
def group_rejoins(k: Narrator) -> None:
    group = "rejoins"
    me, _ = alone(k, group)
    k.ask(join(group, me), 5, "the leader joins again")
    k.ask(join(group, me, topics=("other",)), 5, "with another subscription, before it synced")


@story("Metadata and assignments are opaque bytes")
def group_opaque_bytes(k: Narrator) -> None:
    group = "opaque"
    offered = [
        JoinGroupRequestProtocol("mine", b"\x00\x01\xff"),
        JoinGroupRequestProtocol("range", subscription(TOPIC)),
    ]
    wish = JoinGroupRequest(group, 30_000, 30_000, "", None, "mine", offered)
    joined = k.ask(wish, 3, "joins with bytes of its own")
    given = {joined.member_id: b"\xff\x00"}
    k.ask(
        sync(group, joined.generation_id, joined.member_id, given, protocol_type="mine"),
        3,
        "assigns bytes of its own",
    )
