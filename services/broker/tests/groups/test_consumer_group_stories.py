"""What members of a consumer group see."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from ponor_broker.groups.consumer.assignment import CurrentAssignment, MemberState
from ponor_broker.groups.consumer.events import HeartbeatRequest
from ponor_broker.groups.consumer.offset_access import refusal_of_commit, refusal_of_fetch
from ponor_broker.groups.consumer.reconciliation import Target, reconcile
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.instructions import Timer, TimerKind
from ponor_broker.groups.rebalance import GroupState
from ponor_kafka.errors import ErrorCode

from services.broker.tests.consumer_kit import SETTINGS, Client, GroupWorld, MemoryTopics

X = frozenset({"x"})


@pytest.fixture
def topics() -> MemoryTopics:
    topics = MemoryTopics()
    topics.create("x", 4)
    return topics


@pytest.fixture
def world(topics: MemoryTopics) -> GroupWorld:
    return GroupWorld(topics)


def count(client: Client) -> int:
    return sum(map(len, client.owned.values()))


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat(world: GroupWorld) -> None:
    a = Client(world, "a", X)
    answer = a.beat()
    assert (answer.member_epoch, count(a), world.group.state) == (2, 4, GroupState.STABLE)
    assert a.beat().assignment is None


def test_a_second_member_gets_its_part_after_the_first_revoked_it(world: GroupWorld) -> None:
    a, b = Client(world, "a", X), Client(world, "b", X)
    a.beat()
    assert (b.beat().assignment, b.epoch) == ({}, 2)  # the next target waits for the interval
    assert world.group.state.value == "Assigning"
    world.pass_ms(1_000)
    assert world.group.state.value == "Reconciling"
    b.beat()
    assert (count(b), b.epoch) == (0, 3)
    a.beat(is_slow=True)
    assert a.epoch == 2
    assert world.group.contents.currents["a"].state is MemberState.UNREVOKED_PARTITIONS
    b.beat()
    assert count(b) == 0, "the first member may still use the partitions"
    a.beat(is_slow=True)
    assert a.epoch == 2
    a.apply()
    a.beat()
    assert (count(a), a.epoch) == (2, 3)
    b.beat()
    assert (count(b), b.epoch) == (2, 3)
    assert world.group.state is GroupState.STABLE


def test_a_member_that_does_not_revoke_is_fenced(world: GroupWorld) -> None:
    a, b = Client(world, "a", X), Client(world, "b", X)
    a.beat()
    b.beat()
    world.pass_ms(1_000)
    for _ in range(12):
        assert a.beat(is_slow=True).error is ErrorCode.NONE
        b.beat()
        world.pass_ms(5_000)
    assert a.beat(is_slow=True).error is ErrorCode.UNKNOWN_MEMBER_ID
    b.beat()
    assert count(b) == 4


def test_a_member_without_heartbeats_is_removed(world: GroupWorld) -> None:
    a, b = Client(world, "a", X), Client(world, "b", X)
    a.beat()
    b.beat()
    for _ in range(10):
        world.pass_ms(5_000)
        b.beat()
    assert list(world.group.contents.members) == ["b"]
    assert count(b) == 4


def test_a_static_member_returns_to_its_partitions(world: GroupWorld) -> None:
    a, s = Client(world, "a", X), Client(world, "s1", X, instance_id="s")
    a.beat()
    s.beat()
    world.pass_ms(1_000)
    for client in (a, s, a, s, a, s):
        client.beat()
    held, epoch = s.owned, world.group.contents.group_epoch
    assert sum(map(len, held.values())) == 2
    usurper = Client(world, "s2", X, instance_id="s")
    assert usurper.beat().error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert s.leave(for_short=True).member_epoch == -2
    assert usurper.beat().error is ErrorCode.NONE
    assert (usurper.owned, world.group.contents.group_epoch) == (held, epoch)
    old = HeartbeatRequest("s1", epoch, "s", owned=held)
    assert world.heartbeat(old).error is ErrorCode.FENCED_INSTANCE_ID


def test_a_lost_answer_does_not_fence_the_member(world: GroupWorld) -> None:
    a, b = Client(world, "a", X), Client(world, "b", X)
    a.beat()
    b.beat()
    world.pass_ms(1_000)
    a.beat()
    a.beat(is_lost=True)
    assert (a.epoch, world.group.contents.currents["a"].epoch) == (2, 3)
    assert a.beat().error is ErrorCode.NONE
    assert (a.epoch, count(a)) == (3, 2)


def test_a_wrong_epoch_is_fenced_with_kafkas_message(world: GroupWorld) -> None:
    a = Client(world, "a", X)
    a.beat()
    newer = world.heartbeat(HeartbeatRequest("a", 7))
    assert newer.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert newer.message == (
        "The consumer group member has a greater member epoch (7) than the one known by the group "
        "coordinator (2). The member must abandon all its partitions and rejoin."
    )
    unknown = world.heartbeat(HeartbeatRequest("b", 7))
    assert (unknown.error, unknown.message) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        "Member b is not a member of group g.",
    )


def test_an_expression_follows_new_topics(world: GroupWorld, topics: MemoryTopics) -> None:
    a = Client(world, "a", expression="x.*")
    a.beat()
    assert count(a) == 4
    topics.create("x2", 3)
    topics.create("other", 1)
    a.beat()
    assert count(a) == 4
    world.pass_ms(10_000)
    a.beat()
    a.beat()
    assert count(a) == 7
    bad = Client(world, "b", expression="x(").beat()
    assert bad.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert bad.message is not None
    assert bad.message.startswith("SubscribedTopicRegex `x(` is not a valid regular expression: ")
    a.leave()
    assert not world.group.contents.expressions


def test_new_partitions_raise_the_group_epoch(world: GroupWorld, topics: MemoryTopics) -> None:
    a = Client(world, "a", X)
    a.beat()
    topics.create("x", 6)
    world.pass_ms(1_000)
    a.beat()
    assert (count(a), a.epoch) == (6, 3)


def test_a_refused_batch_changes_nothing(world: GroupWorld) -> None:
    world.refuses = True
    a = Client(world, "a", X)
    assert a.beat().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.group.contents.has_records
    world.refuses = False
    assert a.beat().member_epoch == 2


def test_a_full_group_accepts_its_own_members_only(topics: MemoryTopics) -> None:
    world = GroupWorld(topics, replace(SETTINGS, members_max=1))
    a = Client(world, "a", X)
    a.beat()
    refused = Client(world, "b", X).beat()
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.message == "The consumer group has reached its maximum capacity of 1 members."
    assert a.beat().error is ErrorCode.NONE


def test_offsets_are_checked_against_the_epoch_of_the_partition(
    world: GroupWorld, topics: MemoryTopics
) -> None:
    a, b = Client(world, "a", X), Client(world, "b", X)
    a.beat()
    b.beat()
    world.pass_ms(1_000)
    for client in (a, a, b):
        client.beat()
    topic_id = topics.topics["x"].topic_id
    of_a, of_b = ((topic_id, next(iter(each.owned[topic_id]))) for each in (a, b))

    def commit(member_id: str, epoch: int, *partitions: tuple[bytes, int], knows: bool = True) -> ErrorCode:
        claim = MemberClaim(member_id, None, epoch)
        contents = world.group.contents
        return refusal_of_commit(contents, claim, partitions, in_transaction=False, knows_epochs=knows)

    assert commit("a", 3, of_a) is ErrorCode.NONE
    assert commit("a", 2, of_a) is ErrorCode.NONE, "the member has had the partition since epoch 2"
    assert commit("a", 2, of_b) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit("b", 2, of_b) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit("a", 4, of_a) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit("a", 3, of_a, knows=False) is ErrorCode.UNSUPPORTED_VERSION
    assert commit("", -1, of_a) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal_of_fetch(world.group.contents, None, -1) is ErrorCode.NONE
    assert refusal_of_fetch(world.group.contents, "a", 3) is ErrorCode.NONE
    assert refusal_of_fetch(world.group.contents, "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal_of_fetch(world.group.contents, "z", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_keeps_no_partition_of_a_topic_it_left() -> None:
    x, y = b"x" * 16, b"y" * 16
    current = CurrentAssignment(3, 2, MemberState.STABLE, {x: {0: 1}, y: {0: 3}})
    target = Target(3, {x: frozenset({0}), y: frozenset({0})})

    def step(current: CurrentAssignment, owned: dict[bytes, frozenset[int]] | None) -> CurrentAssignment:
        return reconcile(
            current,
            target,
            subscribed={x},
            owned=owned,
            is_held=lambda *_: False,
            subscription_changed=True,
        )

    revoking = step(current, None)
    assert revoking == CurrentAssignment(3, 3, MemberState.UNREVOKED_PARTITIONS, {x: {0: 1}}, {y: {0: 3}})
    assert step(current, {x: frozenset({0})}) == CurrentAssignment(3, 3, MemberState.STABLE, {x: {0: 1}})
    assert step(revoking, {x: frozenset({0})}) == CurrentAssignment(3, 3, MemberState.STABLE, {x: {0: 1}})


def test_an_expression_that_takes_long_is_resolved_outside_of_the_event(topics: MemoryTopics) -> None:
    for number in range(40):
        topics.create("".join(random.Random(number).choices("ab", k=60)), 1)
    world = GroupWorld(topics)
    a = Client(world, "a", expression="(a|b)*a(a|b){40}")
    for _ in range(2):
        assert a.beat().error is ErrorCode.NONE
        assert not world.group.contents.expressions
    for _ in world.work():
        pass
    world.pass_ms(1_000)
    a.beat()
    matching = [name for name in topics.names() if re.fullmatch("[ab]*a[ab]{40}", name)]
    assert count(a) == len(matching) > 0


def test_new_expressions_do_not_delay_outdated_ones(world: GroupWorld, topics: MemoryTopics) -> None:
    a = Client(world, "a", expression="x.*")
    a.beat()
    topics.create("x2", 3)
    for number in range(6):
        world.pass_ms(4_000)
        Client(world, f"m{number}", expression=f"z{number}").beat()
        a.beat()
    assert count(a) == 7


def test_a_result_without_memory_is_stored_later(world: GroupWorld, topics: MemoryTopics) -> None:
    a = Client(world, "a", expression="x.*")
    a.beat()
    for number in range(100):
        topics.create(f"x{number}", 1)
    world.pass_ms(10_000)
    world.room_bytes = 1_000
    for _ in range(5):
        assert a.beat().error is ErrorCode.NONE
        assert not world.group.needs_resolution(world.now_ms)
    assert world.group.contents.expressions["x.*"].topics == X
    assert count(a) == 4
    world.room_bytes = 1 << 30
    world.pass_ms(10_000)
    for _ in range(3):
        a.beat()
        for _ in world.work():
            pass
    assert count(a) == 104


def test_a_refused_heartbeat_does_not_make_the_group_look_up_its_topics(
    world: GroupWorld, topics: MemoryTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Client(world, "a", X)
    a.beat()
    found: list[str] = []
    monkeypatch.setattr(topics, "find", found.append)
    assert world.heartbeat(HeartbeatRequest("b", 7)).error is ErrorCode.UNKNOWN_MEMBER_ID
    a.beat()
    assert found == []


def test_a_timer_that_fires_late_does_not_bring_back_an_older_target(topics: MemoryTopics) -> None:
    world = GroupWorld(topics, replace(SETTINGS, assigned_at_once_max=6, targets_per_part=1))
    clients = [Client(world, name, X) for name in "abc"]
    for client in clients:
        client.beat()
    world.pass_ms(1_000)
    work = world.work()
    next(work)
    # A timer that the log refused before fires again during the computation, and the group becomes small.
    world.execute(world.group.timer_fired(Timer(TimerKind.ASSIGNMENT), world.now_ms))
    world.leave("b", "c")
    newest = world.group.contents.assigned_epoch
    assert newest == world.group.contents.group_epoch
    for _ in work:
        pass
    assert world.group.contents.assigned_epoch == newest
    assert sum(map(len, world.group.contents.target_of("a").values())) == 4
