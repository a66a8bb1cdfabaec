"""Compaction tasks with two workers: crashes, stale plans, lost answers, trims and deletions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS

from services.controller.tests.compacting import (
    DONE,
    EAGER,
    FENCED,
    SOURCE_GONE,
    STALE_PLAN,
    Worker,
    eager_ledger,
    require_all_found,
)
from services.controller.tests.ledger import Ledger, upload_body

SET_OBJECTS = records_pb2.COMPACTION_KIND_SET_OBJECTS
FORCE_SPLIT = records_pb2.COMPACTION_KIND_FORCE_SPLIT
STREAM_OBJECTS = records_pb2.COMPACTION_KIND_STREAM_OBJECTS


class Cluster:
    """A broker with two streams, with six uploads of a piece of each into set objects."""

    def __init__(self, ledger: Ledger, uploads: int = 6) -> None:
        self.ledger = ledger
        self.broker: Caller = ledger.register(0)
        self.one, self.two = ledger.create_streams(self.broker, 2)
        ledger.open(self.broker, self.one, 1)
        ledger.open(self.broker, self.two, 1)
        self.end = 0
        self.set_objects = [self.upload() for _ in range(uploads)]
        self.worker = Worker(ledger)

    def upload(self) -> int:
        start, self.end = self.end, self.end + 10
        pieces = [(each, 1, start, self.end) for each in (self.one, self.two)]
        (object_id,) = self.ledger.upload(self.broker, pieces)
        self.ledger.now_ms += 1
        return object_id

    def trim(self, stream_id: int, start: int) -> None:
        state = wire.StreamState(stream_id=stream_id, stream_epoch=1, start_offset=start)
        self.ledger.do(self.broker, trim_streams=wire.TrimStreams(streams=[state]))
        self.ledger.reclaim()

    def delete(self, *stream_ids: int) -> None:
        self.ledger.do(self.broker, delete_streams=wire.DeleteStreams(stream_ids=stream_ids))
        self.ledger.reclaim()

    def states(self, *object_ids: int) -> list[str]:
        return [self.ledger.object(each).state.name for each in object_ids]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(eager_ledger())


def test_set_objects_are_joined_and_every_offset_is_still_found(cluster: Cluster) -> None:
    task = cluster.worker.lease()
    assert (task.kind, task.node_id, task.stream_id, task.token) == (
        SET_OBJECTS,
        cluster.broker.node_id,
        -1,
        1,
    )
    assert [each.object_id for each in task.sources] == cluster.set_objects
    assert all(each.namespace and each.size_bytes == 1_000 for each in task.sources)
    assert [(each.stream_id, each.start_offset, each.end_offset) for each in task.streams] == [
        (cluster.one, 0, 60),
        (cluster.two, 0, 60),
    ]
    body = cluster.worker.plan(task)
    decided = cluster.ledger.decide(cluster.worker.caller, commit_compaction=body)
    assert [record.WhichOneof("kind") for record in decided] == [
        "objects_destroyed",
        "stream_set_object_committed",
        "compaction_ended",
    ], "readers see both, or neither"
    assert cluster.worker.commit(body) == DONE
    assert cluster.states(*cluster.set_objects) == ["DESTROYED"] * 6
    made = cluster.ledger.set_object(body.stream_set_object.object_id)
    assert (made.node_id, len(made.ranges.decoded)) == (cluster.broker.node_id, 2)
    assert cluster.ledger.stream(cluster.one).end_offset == 60
    cluster.upload()
    require_all_found(cluster.ledger)


def test_two_workers_never_share_an_object(cluster: Cluster) -> None:
    other = Worker(cluster.ledger, 501)
    first = cluster.worker.lease(source_bytes_max=3_000)
    second = other.lease(source_bytes_max=3_000)
    sources = [each.object_id for task in (first, second) for each in task.sources]
    assert sorted(sources) == cluster.set_objects
    assert first.task_id != second.task_id
    assert other.finds_nothing()
    assert other.commit(other.plan(second)) == DONE
    assert cluster.worker.commit(cluster.worker.plan(first, split=True)) == DONE
    require_all_found(cluster.ledger)


def test_a_proposed_uncommitted_task_is_not_offered_again(cluster: Cluster) -> None:
    cluster.ledger.hold = True
    cluster.worker.lease()
    assert Worker(cluster.ledger, 501).finds_nothing()


def test_an_expired_task_goes_to_the_next_worker(cluster: Cluster) -> None:
    other = Worker(cluster.ledger, 501)
    task = cluster.worker.lease(ttl_ms=1_000)
    assert other.finds_nothing()
    cluster.ledger.now_ms += 1_000
    assert cluster.worker.renew(task, ttl_ms=500) == DONE
    cluster.ledger.now_ms += 501
    again = other.lease()
    assert (again.task_id, again.token) == (task.task_id, 2)
    assert again.sources == task.sources
    body = cluster.worker.plan(task)
    assert cluster.worker.renew(task) == FENCED
    assert cluster.worker.commit(body) == FENCED
    assert cluster.states(*cluster.set_objects) == ["COMMITTED"] * 6
    assert other.commit(other.plan(again)) == DONE
    assert cluster.worker.commit(body) == FENCED
    require_all_found(cluster.ledger)


def test_a_paused_worker_that_was_not_replaced_may_finish(cluster: Cluster) -> None:
    task = cluster.worker.lease(ttl_ms=1_000)
    body = cluster.worker.plan(task)
    cluster.ledger.now_ms += 30_000
    assert cluster.worker.commit(body) == DONE


def test_a_dead_workers_task_is_offered_immediately(cluster: Cluster) -> None:
    other = Worker(cluster.ledger, 501)
    task = cluster.worker.lease()
    body = cluster.worker.plan(task)
    cluster.ledger.fence(cluster.worker.caller)
    assert other.lease().task_id == task.task_id
    restarted = Worker(cluster.ledger, 501)
    again = restarted.lease()
    assert (again.task_id, again.token) == (task.task_id, 3), "a process that was replaced has no tasks"
    body.token = 2
    assert restarted.commit(body) == FENCED


def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(cluster: Cluster) -> None:
    task = cluster.worker.lease()
    body = cluster.worker.plan(task)
    assert cluster.worker.commit(body) == DONE
    before = cluster.ledger.view.index
    assert cluster.worker.commit(body) == DONE
    assert cluster.ledger.view.index == before
    other = Worker(cluster.ledger, 501)
    assert other.commit(body) == FENCED, "outputs of another worker are no proof"


def test_an_incomplete_plan_changes_nothing(cluster: Cluster) -> None:
    worker, task = cluster.worker, cluster.worker.lease()
    one, two = worker.held_runs(task)
    assert one == (cluster.one, 0, 60)
    stale = [
        ([one], []),
        ([one, (two[0], 1, 60)], []),
        ([one, (two[0], 0, 59)], []),
        ([one, (two[0], 0, 20), (two[0], 21, 60)], []),
        ([], [one]),
        ([], []),
        ([one, two], [one]),
        ([(one[0], 0, 61), two], []),
        ([one, two, (two[0] + 1, 0, 5)], []),
    ]
    for together, apart in stale:
        assert worker.commit(worker.body(task, together, apart)) == STALE_PLAN, (together, apart)
    body = worker.plan(task)
    body.planned_index = cluster.ledger.view.index + 1
    assert worker.commit(body) == STALE_PLAN, "from a log that was lost"
    assert cluster.states(*cluster.set_objects) == ["COMMITTED"] * 6
    assert worker.commit(worker.body(task, [one], [(two[0], 0, 30), (two[0], 30, 60)])) == DONE
    require_all_found(cluster.ledger)


def test_data_uploaded_meanwhile_is_in_no_output(cluster: Cluster) -> None:
    worker, task = cluster.worker, cluster.worker.lease()
    cluster.upload()
    runs = [(stream_id, 0, 70) for stream_id in (cluster.one, cluster.two)]
    assert worker.commit(worker.body(task, runs, [])) == STALE_PLAN
    assert worker.commit(worker.plan(task)) == DONE
    require_all_found(cluster.ledger)


def test_data_trimmed_meanwhile_may_be_in_the_outputs_or_not(cluster: Cluster) -> None:
    worker, task = cluster.worker, cluster.worker.lease()
    before = worker.plan(task)
    cluster.trim(cluster.one, 15)
    cluster.trim(cluster.two, 15)
    assert cluster.states(*cluster.set_objects)[:2] == ["DESTROYED", "COMMITTED"]
    one, two = (cluster.one, 15, 60), (cluster.two, 10, 60)
    assert worker.commit(worker.body(task, [(cluster.one, 16, 60), two], [])) == STALE_PLAN
    clipped = worker.body(task, [one, two], [])
    assert worker.ledger.decide(worker.caller, commit_compaction=clipped)
    assert worker.commit(before) == DONE
    require_all_found(cluster.ledger)


def test_outputs_without_live_data_are_dropped_at_the_commit(cluster: Cluster) -> None:
    worker, task = cluster.worker, cluster.worker.lease()
    body = worker.plan(task, split=True)
    cluster.delete(cluster.one)
    assert worker.commit(body) == DONE
    first, second = [each.object_id for each in body.stream_objects]
    assert cluster.states(first, second) == ["DESTROYED", "COMMITTED"]
    require_all_found(cluster.ledger)


def test_a_piece_of_a_deleted_stream_is_omitted_from_the_set_object(cluster: Cluster) -> None:
    worker, task = cluster.worker, cluster.worker.lease()
    body = worker.plan(task)
    cluster.delete(cluster.two)
    assert worker.commit(body) == DONE
    (piece,) = cluster.ledger.set_object(body.stream_set_object.object_id).ranges.decoded
    assert piece.stream_id == cluster.one
    require_all_found(cluster.ledger)


def test_a_task_without_sources_ends(cluster: Cluster) -> None:
    worker, task = cluster.worker, cluster.worker.lease()
    body = worker.plan(task)
    cluster.delete(cluster.one, cluster.two)
    assert worker.commit(body) == SOURCE_GONE
    assert task.task_id in cluster.ledger.image[COMPACTIONS]
    cluster.ledger.now_ms += 60_001
    assert worker.finds_nothing()
    assert task.task_id not in cluster.ledger.image[COMPACTIONS], "the next request finds it empty"


def test_a_repeated_offer_names_the_remaining_sources(cluster: Cluster) -> None:
    task = cluster.worker.lease(ttl_ms=1)
    cluster.trim(cluster.one, 20)
    cluster.trim(cluster.two, 20)
    cluster.ledger.now_ms += 2
    again = cluster.worker.lease()
    assert [each.object_id for each in again.sources] == cluster.set_objects[2:]
    assert (again.task_id, again.token) == (task.task_id, 2)
    assert cluster.worker.commit(cluster.worker.plan(again)) == DONE
    require_all_found(cluster.ledger)


def test_a_returned_task_frees_its_sources_and_a_smaller_one_is_offered(cluster: Cluster) -> None:
    task = cluster.worker.lease()
    cluster.worker.end(task)
    cluster.worker.end(task)
    again = cluster.worker.lease()
    assert again.task_id != task.task_id
    assert [each.object_id for each in again.sources] == cluster.set_objects[:3]
    cluster.worker.end(again)
    following = cluster.worker.lease()
    assert cluster.set_objects[0] not in [each.object_id for each in following.sources]
    cluster.ledger.now_ms += 600_001
    cluster.worker.end(following)


def test_a_task_is_not_offered_after_repeated_crashes_of_workers(cluster: Cluster) -> None:
    for token in range(1, 6):
        assert cluster.worker.lease(ttl_ms=1, source_bytes_max=2_000).token == token
        cluster.ledger.now_ms += 2
    following = cluster.worker.lease(source_bytes_max=2_000)
    assert following.token == 1
    assert cluster.set_objects[0] not in [each.object_id for each in following.sources]


def test_a_swap_too_large_for_one_batch_is_refused() -> None:
    cluster = Cluster(eager_ledger())
    cluster.ledger.settings = replace(cluster.ledger.settings, batch_bytes_max=100)
    task = cluster.worker.lease()
    body = cluster.worker.plan(task)
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=body) == "INVALID_REQUEST"
    cluster.worker.end(task)
    assert len(cluster.worker.lease().sources) == 3


def test_old_set_objects_are_split_even_with_small_runs() -> None:
    cluster = Cluster(
        eager_ledger(replace(EAGER, compaction_patience_ms=1 << 30, compaction_force_split_ms=5_000))
    )
    assert cluster.worker.finds_nothing()
    cluster.ledger.now_ms += 5_000
    task = cluster.worker.lease()
    assert task.kind == FORCE_SPLIT
    runs = cluster.worker.held_runs(task)
    together = cluster.worker.body(task, runs, [])
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=together) == "INVALID_REQUEST"
    assert cluster.worker.commit(cluster.worker.plan(task)) == DONE
    assert not list(cluster.ledger.image[STREAM_SET_OBJECTS])
    require_all_found(cluster.ledger)


def test_adjacent_stream_objects_of_a_stream_are_joined(cluster: Cluster) -> None:
    ledger = cluster.ledger
    (stream,) = ledger.create_streams(cluster.broker)
    ledger.open(cluster.broker, stream, 1)
    for start in range(0, 50, 10):
        ledger.upload(cluster.broker, stream_objects=[(stream, 1, start, start + 10)])
    while not ledger.survey.step():
        pass
    first, second = cluster.worker.lease(), cluster.worker.lease()
    task = first if first.kind == STREAM_OBJECTS else second
    assert (task.kind, task.node_id, task.stream_id, len(task.sources)) == (STREAM_OBJECTS, -1, stream, 5)
    assert [each.stream_id for each in task.streams] == [stream]
    body = cluster.worker.plan(task)
    assert cluster.worker.commit(body) == DONE
    (single,) = body.stream_objects
    row = ledger.stream_object(single.object_id)
    assert (row.start_offset, row.end_offset) == (0, 50)
    require_all_found(ledger)


def test_set_objects_of_an_unregistered_node_are_offered(cluster: Cluster) -> None:
    cluster.ledger.fence(cluster.broker)
    task = cluster.worker.lease()
    assert task.node_id == cluster.broker.node_id
    assert cluster.worker.commit(cluster.worker.plan(task)) == DONE


def test_sources_of_one_task_are_of_one_node(cluster: Cluster) -> None:
    ledger = cluster.ledger
    other = ledger.register(1)
    (stream,) = ledger.create_streams(other)
    ledger.open(other, stream, 1)
    for start in (0, 5):
        ledger.upload(other, [(stream, 1, start, start + 5)])
    tasks = [cluster.worker.lease(), cluster.worker.lease()]
    for task in tasks:
        nodes = {ledger.set_object(each.object_id).node_id for each in task.sources}
        assert nodes == {task.node_id}
    assert sorted(task.node_id for task in tasks) == sorted((cluster.broker.node_id, other.node_id))


def test_outputs_must_be_prepared_by_the_worker_and_not_expired(cluster: Cluster) -> None:
    task = cluster.worker.lease()
    body = cluster.worker.plan(task)
    theirs = Worker(cluster.ledger, 501)
    body.stream_set_object.object_id = cluster.ledger.prepare(theirs.caller)[0]
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=body) == "OBJECT_NOT_PREPARED"
    body.stream_set_object.object_id = cluster.set_objects[0]
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=body) == "OBJECT_NOT_PREPARED"
    (late,) = cluster.ledger.prepare(cluster.worker.caller, ttl_ms=1)
    body.stream_set_object.object_id = late
    cluster.ledger.now_ms += 2
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=body) == "OBJECT_EXPIRED"
    body = cluster.worker.plan(task)
    body.stream_set_object.size_bytes = 0
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=body) == "INVALID_REQUEST"
    body.stream_set_object.size_bytes = 1
    body.stream_set_object.ranges.reverse()
    assert cluster.ledger.refusal(cluster.worker.caller, commit_compaction=body) == "INVALID_REQUEST"


def test_only_compactors_compact(cluster: Cluster) -> None:
    ledger, lease = cluster.ledger, wire.LeaseCompaction(ttl_ms=1, source_bytes_max=1)
    for body in (
        {"lease_compaction": lease},
        {"renew_compaction": wire.RenewCompaction()},
        {"commit_compaction": wire.CommitCompaction()},
        {"end_compaction": wire.EndCompaction()},
    ):
        assert ledger.refusal(cluster.broker, **body) == "INVALID_REQUEST"
    upload = upload_body(ledger.prepare(cluster.worker.caller), [(cluster.one, 1, 60, 61)])
    assert ledger.refusal(cluster.worker.caller, commit_upload=upload) == "INVALID_REQUEST"
    for senseless in (wire.LeaseCompaction(ttl_ms=1), wire.LeaseCompaction(source_bytes_max=1)):
        assert ledger.refusal(cluster.worker.caller, lease_compaction=senseless) == "INVALID_REQUEST"


def test_the_number_of_tasks_is_limited() -> None:
    ledger = eager_ledger(replace(EAGER, compaction_tasks_max=1))
    cluster = Cluster(ledger)
    cluster.worker.lease(source_bytes_max=2_000)
    assert cluster.worker.finds_nothing()


def test_young_objects_are_not_compacted_and_few_wait_for_more() -> None:
    settings = replace(EAGER, compaction_settle_ms=10_000, compaction_patience_ms=100_000)
    cluster = Cluster(Ledger(settings=ControllerSettings(compaction=settings)))
    assert cluster.worker.finds_nothing()
    cluster.ledger.now_ms += 10_010
    assert cluster.worker.finds_nothing(), "they fill a task less than half"
    assert len(cluster.worker.lease(source_bytes_max=8_000).sources) == 6


def test_a_task_too_large_for_all_asking_workers_ends_and_is_offered_in_parts(cluster: Cluster) -> None:
    """The worker that could take it exited permanently. Otherwise the task would hold its sources,
    and its place among the tasks, without limit.
    """
    ledger = cluster.ledger
    ledger.settings = replace(
        ledger.settings, compaction=replace(ledger.settings.compaction, compaction_tasks_max=1)
    )
    large = cluster.worker.lease(ttl_ms=60_000)
    ledger.fence(cluster.worker.caller)
    small = Worker(ledger, 501)
    ledger.now_ms = large.leased_until_ms + 3 * 60_000
    assert small.finds_nothing(ttl_ms=60_000, source_bytes_max=3_000), "another large one may come"
    ledger.now_ms += 1
    assert small.finds_nothing(source_bytes_max=3_000), "it is ended"
    assert not list(ledger.image[COMPACTIONS])
    part = small.lease(ttl_ms=60_000, source_bytes_max=3_000)
    assert part.task_id != large.task_id
    assert [each.object_id for each in part.sources] == cluster.set_objects[:3]
    assert small.commit(small.plan(part)) == DONE
    require_all_found(ledger)
