"""Set objects with more streams than fit into one task: which are offered, and how the widest are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.compaction import fitting
from ponor_controller.domains.compaction.fitting import Widths, find_fitting
from ponor_controller.domains.compaction.selection import SetObject
from ponor_controller.kernel.operation import Caller
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS, StreamSetObjectRow
from ponor_metadata.nouns.streams import STREAM_OBJECTS
from ponor_metadata.tables.ranges import PackedRanges, StreamPiece, encode_ranges
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from services.controller.tests.compacting import DONE, EAGER, Worker, eager_ledger, require_all_found
from services.controller.tests.domains.compaction.test_compaction_offering import row
from services.controller.tests.ledger import Ledger

FORCE_SPLIT = records_pb2.COMPACTION_KIND_FORCE_SPLIT
SPLIT_MS = 5_000


def fit(
    *streams: Sequence[int], streams_max: int = 4, alone: int = 4, ranges_max: int = 100, count_min: int = 2
) -> list[int]:
    """Numbers of the objects that share a task; each has one range in this many streams."""
    objects: list[SetObject] = []
    ranges: dict[ObjectId, StreamSetObjectRow] = {}
    for number, ids in enumerate(streams):
        held = PackedRanges(encode_ranges(StreamPiece(StreamId(each), number, number + 1) for each in ids))
        objects.append(SetObject(row(number, 1_000), len(held.data), False))
        ranges[ObjectId(number)] = StreamSetObjectRow(ObjectId(number), NodeId(1), number, held)
    widths = Widths(streams_max, alone, ranges_max)
    found = find_fitting(objects, ranges, widths, count_min=count_min)
    assert found.pieces == sum(len(streams[each.row.object_id]) for each in found.objects)
    return [each.row.object_id for each in found.objects]


A, B, C = range(3), range(3, 6), range(6, 9)


def test_an_object_that_does_not_fit_is_skipped_and_later_ones_are_taken() -> None:
    assert fit(A, B, A, B, A) == [0, 2, 4], "uploads of a broker whose streams do not fit into one task"
    assert fit(A, range(9), A) == [0, 2], "an object that is too wide alone"
    assert fit(A, [3], B, A, [0, 3]) == [0, 1, 3, 4]


def test_an_object_too_wide_for_any_partner_does_not_block_the_others() -> None:
    assert fit(C, A, B, A) == [1, 3]
    assert fit(B, C, A, A) == [2, 3]
    assert fit(A, B, C, range(9, 12)) == [2], "no two objects fit together"
    assert fitting.STARTS_MAX == 3


def test_ranges_are_a_separate_limit() -> None:
    assert fit(A, A, A, ranges_max=7) == [0, 1]
    assert fit(A, B, B, A, ranges_max=6) == [0, 3]
    assert fit(A, B, C, B, A, ranges_max=6, count_min=1) == [0], "a look ends"


def test_a_single_object_may_be_wider() -> None:
    assert fit(range(6), A, alone=6, count_min=1) == [0]
    assert fit(A, range(6), A, alone=6, count_min=1) == [0, 2], "it is taken when it is the first"
    assert fit(range(7), A, alone=6, count_min=1) == [1]


# In the ledger


def wide_ledger(streams: int, **settings: int) -> tuple[Ledger, Caller, list[int]]:
    """Set objects are split after a while; one was uploaded with all these streams."""
    ledger = eager_ledger(
        replace(
            EAGER,
            compaction_patience_ms=1 << 30,
            compaction_force_split_ms=SPLIT_MS,
            compaction_survey_interval_ms=1,
            **settings,
        )
    )
    broker = ledger.register(0)
    ids = ledger.create_streams(broker, streams)
    for each in ids:
        ledger.open(broker, each, 1)
    ledger.upload(broker, [(each, 1, 0, 10) for each in ids])
    return ledger, broker, ids


def split_some(worker: Worker, task: wire.CompactionGranted, count: int) -> wire.CommitCompaction:
    """Split as a compactor does, into this many objects of one stream at once."""
    runs = worker.held_runs(task)
    return worker.body(task, runs[count:], runs[:count])


def test_an_object_wider_than_one_split_is_divided_in_several_steps() -> None:
    ledger, _, ids = wide_ledger(7, compaction_split_streams_max=3, compaction_streams_max=8)
    worker = Worker(ledger)
    lefts: list[int] = []
    for _ in range(3):
        assert worker.finds_nothing(), "the rest is young"
        ledger.now_ms += SPLIT_MS
        task = worker.lease()
        assert (task.kind, len(task.sources)) == (FORCE_SPLIT, 1)
        assert worker.commit(split_some(worker, task, 3)) == DONE
        require_all_found(ledger)
        lefts.append(sum(len(each.ranges.decoded) for each in ledger.image[STREAM_SET_OBJECTS]))
    assert lefts == [4, 1, 0]
    assert [each.stream_id for each in ledger.image[STREAM_OBJECTS]] == ids


def test_an_object_wider_than_any_task_is_not_offered() -> None:
    ledger, _, _ = wide_ledger(9, compaction_split_streams_max=3, compaction_streams_max=8)
    ledger.now_ms += SPLIT_MS
    assert Worker(ledger).finds_nothing()


def test_data_trimmed_during_a_partial_split_is_in_neither_output() -> None:
    ledger, broker, ids = wide_ledger(6, compaction_split_streams_max=3)
    worker = Worker(ledger)
    ledger.now_ms += SPLIT_MS
    task = worker.lease()
    body = split_some(worker, task, 3)
    ledger.do(
        broker,
        trim_streams=wire.TrimStreams(
            streams=[
                wire.StreamState(stream_id=each, stream_epoch=1, start_offset=10) for each in (ids[0], ids[4])
            ]
        ),
    )
    assert worker.commit(body) == DONE
    (left,) = ledger.image[STREAM_SET_OBJECTS]
    assert list(left.ranges.decoded.stream_ids()) == [ids[3], ids[5]]
    assert [each.stream_id for each in ledger.image[STREAM_OBJECTS]] == ids[1:3]
    require_all_found(ledger)


@pytest.mark.parametrize("lost", ["of the objects", "of the rest"])
def test_an_incomplete_partial_split_is_not_committed(lost: str) -> None:
    ledger, _, _ = wide_ledger(6, compaction_split_streams_max=3)
    worker = Worker(ledger)
    ledger.now_ms += SPLIT_MS
    body = split_some(worker, worker.lease(), 3)
    if lost == "of the objects":
        del body.stream_objects[0]
    else:
        del body.stream_set_object.ranges[0]
    assert worker.commit(body) != DONE
    require_all_found(ledger)


def test_a_forced_split_without_split_streams_is_refused() -> None:
    ledger, _, _ = wide_ledger(6, compaction_split_streams_max=3)
    worker = Worker(ledger)
    ledger.now_ms += SPLIT_MS
    body = split_some(worker, worker.lease(), 0)
    assert ledger.refusal(worker.caller, commit_compaction=body) == "INVALID_REQUEST"
