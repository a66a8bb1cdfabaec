"""The state machine of streams groups: joins, topics, tasks, revocation, fencing, endpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.streams.assignment import NO_TASKS, Tasks
from ponor_broker.groups.streams.configured_topology import StatusCode
from ponor_broker.groups.streams.events import EndpointPartitions, StreamsHeartbeat
from ponor_broker.groups.streams.member import Endpoint
from ponor_broker.groups.streams.offset_access import refusal_of_commit, refusal_of_fetch
from ponor_broker.groups.streams.topology import Topology
from ponor_kafka.errors import ErrorCode

from services.broker.tests.consumer_kit import MemoryTopics
from services.broker.tests.streams_kit import GROUP, SETTINGS, WORD_COUNT, Client, StreamsWorld, settle, tasks

World = Callable[..., StreamsWorld]


@pytest.fixture
def make_world() -> World:
    def make(partitions: int = 2, **changed: Any) -> StreamsWorld:
        topics = MemoryTopics()
        for name in ("lines", "app-by-word", "app-counts"):
            topics.create(name, partitions)
        return StreamsWorld(topics, replace(SETTINGS, **changed))

    return make


def test_the_first_member_gets_all_tasks(make_world: World) -> None:
    world = make_world()
    a = Client(world, "a")
    answer = a.beat()
    assert answer is not None
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, 2)
    assert answer.tasks == Tasks(tasks("0", 0, 1) | tasks("1", 0, 1))
    assert answer.statuses == ()
    assert world.group.state is GroupState.STABLE
    quiet = a.beat()
    assert quiet is not None
    assert quiet.tasks is None


def test_a_task_moves_only_after_its_revocation(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    settle(a)
    b.beat()
    assert b.owned == NO_TASKS
    world.pass_ms(1_000)
    a.beat(is_slow=True)
    kept = a.answer.tasks if a.answer else None
    assert kept is not None
    assert len(kept.active) == 2
    for _ in range(3):
        b.beat()
    assert b.owned == NO_TASKS, "a still owns the tasks"
    a.owned = kept
    settle(a, b)
    assert a.owned.active | b.owned.active == tasks("0", 0, 1) | tasks("1", 0, 1)
    assert len(b.owned.active) == 2
    assert world.group.state is GroupState.STABLE


def test_a_member_that_does_not_revoke_is_removed(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    settle(a)
    b.beat()
    world.pass_ms(1_000)
    a.beat(is_slow=True)
    world.pass_ms(5_000)
    settle(b)
    assert len(b.owned.active) == 4
    assert a.beat() is not None
    assert a.answer is not None
    assert a.answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed(make_world: World) -> None:
    world = make_world()
    a = Client(world, "a")
    settle(a)
    world.pass_ms(45_000)
    assert world.group.state is GroupState.EMPTY
    assert a.beat() is not None
    settle(a)
    assert len(a.owned.active) == 4


def test_standby_tasks_are_in_another_process(make_world: World) -> None:
    world = make_world(standby_replicas=1)
    a, b, c = Client(world, "a", "p"), Client(world, "b", "p"), Client(world, "c", "q")
    settle(a, b, c)
    for task in tasks("1", 0, 1):
        holders = [
            each.process_id for each in (a, b, c) if task in each.owned.active or task in each.owned.standby
        ]
        assert sorted(holders) == ["p", "q"]
    assert not any(task.subtopology_id == "0" for each in (a, b, c) for task in each.owned.standby)


def test_a_changed_number_of_standby_tasks_leads_to_a_new_assignment(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    settle(a, b)
    world.settings = replace(world.settings, standby_replicas=1)
    world.restart()
    settle(a, b)
    assert len(a.owned.standby) + len(b.owned.standby) == 2


def test_missing_topics_delay_the_tasks(make_world: World) -> None:
    world = make_world()
    world.topics.delete("lines")
    world.topics.delete("app-counts")
    a = Client(world, "a")
    a.beat()
    assert a.statuses == [StatusCode.MISSING_SOURCE_TOPICS]
    assert a.owned == NO_TASKS
    assert world.group.state is GroupState.NOT_READY
    world.topics.create("lines", 2)
    world.pass_ms(1_000)
    answer = a.beat()
    assert answer is not None
    assert StatusCode.MISSING_INTERNAL_TOPICS in a.statuses
    assert [(topic.name, topic.partitions) for topic in answer.missing] == [("app-counts", 2)]
    world.topics.create("app-counts", 2)
    settle(a)
    assert len(a.owned.active) == 4
    assert a.statuses == []


def test_a_deleted_source_topic_takes_the_tasks_away(make_world: World) -> None:
    world = make_world()
    a = Client(world, "a")
    settle(a)
    world.topics.delete("lines")
    settle(a)
    assert a.owned == NO_TASKS
    assert a.statuses == [StatusCode.MISSING_SOURCE_TOPICS]
    assert world.group.state is GroupState.NOT_READY


def test_the_first_assignment_waits_for_more_members(make_world: World) -> None:
    world = make_world(initial_delay_ms=3_000)
    a, b = Client(world, "a"), Client(world, "b")
    a.beat()
    b.beat()
    assert a.owned == b.owned == NO_TASKS
    assert a.statuses == b.statuses == [StatusCode.ASSIGNMENT_DELAYED]
    assert a.epoch == 1
    world.pass_ms(3_000)
    a.beat()
    b.beat()
    assert len(a.owned.active) == len(b.owned.active) == 2


def test_a_topology_does_not_change(make_world: World) -> None:
    world = make_world()
    a, b, c = Client(world, "a"), Client(world, "b"), Client(world, "c")
    a.topology = Topology(1, WORD_COUNT.subtopologies)
    settle(a)
    settle(b)
    assert b.statuses == [StatusCode.STALE_TOPOLOGY]
    c.topology = Topology(2, WORD_COUNT.subtopologies)
    answer = c.beat()
    assert answer is not None
    assert (answer.error, answer.message) == (
        ErrorCode.INVALID_REQUEST,
        "Topology updates are not supported yet.",
    )
    assert "c" not in world.group.contents.members


def test_epochs_are_checked(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    settle(a)
    newer = world.beat(StreamsHeartbeat("a", a.epoch + 1))
    assert newer is not None
    assert newer.error is ErrorCode.FENCED_MEMBER_EPOCH
    b.beat()
    world.pass_ms(1_000)
    before = a.epoch
    a.beat(is_lost=True)
    a.owned = Tasks()
    a.beat(is_lost=True)
    repeated = world.beat(StreamsHeartbeat("a", before, owned=NO_TASKS))
    assert repeated is not None
    assert repeated.error is ErrorCode.NONE, "the answer with the newer epoch was lost"
    older = world.beat(StreamsHeartbeat("a", before - 1, owned=NO_TASKS))
    assert older is not None
    assert older.error is ErrorCode.FENCED_MEMBER_EPOCH


def test_unknown_tasks_are_refused(make_world: World) -> None:
    world = make_world()
    a = Client(world, "a")
    settle(a)
    for owned, message in (
        (tasks("9", 0), "Subtopology 9 does not exist in the topology."),
        (tasks("0", 2), "Task 2 for subtopology 0 is invalid. Number of tasks for this subtopology: 2"),
    ):
        answer = world.beat(StreamsHeartbeat("a", a.epoch, owned=Tasks(owned)))
        assert answer is not None
        assert (answer.error, answer.message) == (ErrorCode.INVALID_REQUEST, message)


def test_members_learn_of_endpoints(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    a.extra = {"endpoint": Endpoint("host", 80)}
    settle(a, b)
    answer = b.beat()
    assert answer is not None
    assert answer.endpoint_epoch > 0
    assert answer.endpoints is not None
    (row,) = answer.endpoints
    assert isinstance(row, EndpointPartitions)
    assert row.endpoint == Endpoint("host", 80)
    assert {name for name, partitions in row.active.items() if partitions} <= {"lines", "app-by-word"}
    assert sum(map(len, row.active.values())) == len(a.owned.active)
    b.endpoint_epoch = answer.endpoint_epoch
    again = b.beat()
    assert again is not None
    assert again.endpoints is None


def test_one_member_can_shut_the_application_down(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    settle(a, b)
    a.extra = {"is_shutdown": True}
    a.beat()
    b.beat()
    assert a.statuses == b.statuses == [StatusCode.SHUTDOWN_APPLICATION]
    a.leave()
    b.leave()
    settle(Client(world, "c"))
    assert world.group.state is GroupState.STABLE


def test_a_full_group_and_a_lack_of_memory_refuse_members(make_world: World) -> None:
    world = make_world(members_max=1)
    settle(Client(world, "a"))
    answer = Client(world, "b").beat()
    assert answer is not None
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.settings = replace(world.settings, members_max=2)
    world.restart()
    world.room_bytes = 10
    answer = Client(world, "b").beat()
    assert answer is not None
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(world.group.contents.members) == {"a"}


def test_a_restart_restores_the_group_without_a_rebalance(make_world: World) -> None:
    world = make_world(standby_replicas=1)
    a, b = Client(world, "a"), Client(world, "b")
    settle(a, b)
    epoch, before = world.group.contents.group, (a.owned, b.owned)
    world.restart()
    assert world.group.state is GroupState.STABLE
    settle(a, b)
    assert (a.owned, b.owned) == before
    assert world.group.contents.group == epoch


def test_a_refused_event_changes_nothing(make_world: World) -> None:
    world = make_world()
    a = Client(world, "a")
    world.refuses = True
    assert a.beat() is None
    assert not world.group.contents.members
    world.refuses = False
    settle(a)
    assert len(a.owned.active) == 4


def test_a_large_group_is_assigned_in_steps(make_world: World) -> None:
    world = make_world(assigned_at_once_max=1, targets_per_part=1)
    a, b = Client(world, "a"), Client(world, "b")
    a.beat()
    assert a.statuses == [StatusCode.ASSIGNMENT_DELAYED]
    b.beat()
    list(world.work())
    world.pass_ms(1_000)
    list(world.work())
    settle(a, b)
    assert len(a.owned.active) == len(b.owned.active) == 2


def test_commits_and_fetches_need_the_member_epoch(make_world: World) -> None:
    world = make_world()
    a, b = Client(world, "a"), Client(world, "b")
    settle(a)
    old = a.epoch
    settle(a, b)
    state, kept = world.group.contents, min(a.owned.active)
    topic = "lines" if kept.subtopology_id == "0" else "app-by-word"
    moved = min(b.owned.active)
    other = "lines" if moved.subtopology_id == "0" else "app-by-word"

    def commit(epoch: int, topic: str, index: int, *, is_transaction: bool = False) -> ErrorCode:
        claim, offset = MemberClaim("a", generation=epoch), {(topic, index): CommittedOffset(1)}
        return refusal_of_commit(state, claim, offset, in_transaction=is_transaction, knows_epochs=True)

    assert commit(a.epoch, topic, kept.partition) is ErrorCode.NONE
    assert commit(old, topic, kept.partition) is ErrorCode.NONE, "a has had the task since then"
    assert commit(old, other, moved.partition) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(old, other, moved.partition, is_transaction=True) is ErrorCode.ILLEGAL_GENERATION
    assert commit(a.epoch + 1, topic, kept.partition) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal_of_fetch(state, "a", a.epoch) is ErrorCode.NONE
    assert refusal_of_fetch(state, "a", old) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal_of_fetch(state, "z", old) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal_of_fetch(state, None, -1) is ErrorCode.NONE


def test_tombstones_remove_all_records(make_world: World) -> None:
    world = make_world()
    a = Client(world, "a")
    settle(a)
    assert world.group.delete() is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert world.group.subscribed_topics() == frozenset()
    assert world.group.delete() is ErrorCode.NONE
    for entry in world.group.tombstones():
        assert entry.key.group_id == GROUP
        world.group.contents.put(entry)
    assert not list(world.group.entries())
    assert world.group.size_bytes == 0
