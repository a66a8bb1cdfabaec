"""A mostly trimmed set object is offered alone and rewritten without the trimmed data; others are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.compaction import garbage_ratio
from ponor_controller.domains.compaction.garbage_ratio import trimmed_share
from ponor_controller.kernel.operation import Caller
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS

from services.controller.tests.compacting import DONE, EAGER, Worker, eager_ledger, require_all_found
from services.controller.tests.ledger import Ledger

RECORDS = 100
LIGHT = 50
"""Entries of Meta and Time streams, which are few bytes for any number of entries."""
WORN = replace(EAGER, compaction_patience_ms=1 << 40, compaction_fan_in=1_000)
"""Settings with which objects are offered only for their garbage ratio."""


def partitions_of_three_streams(ledger: Ledger, partitions: int) -> tuple[Caller, list[int]]:
    """Create Meta, Data and Time streams of each partition, in one upload; return the uploading
    node and the Data streams.
    """
    broker = ledger.register(0)
    meta, data, time = (
        ledger.create_streams(broker, partitions, kind=kind) for kind in ("meta", "log", "time")
    )
    for each in (*meta, *data, *time):
        ledger.open(broker, each, 1)
    pieces = [(each, 1, 0, RECORDS) for each in data] + [(each, 1, 0, LIGHT) for each in (*meta, *time)]
    ledger.upload(broker, sorted(pieces))
    return broker, data


def trim(ledger: Ledger, broker: Caller, streams: list[int], offset: int) -> None:
    rows = [wire.StreamState(stream_id=each, stream_epoch=1, start_offset=offset) for each in streams]
    ledger.do(broker, trim_streams=wire.TrimStreams(streams=rows))


def walk(ledger: Ledger) -> None:
    while not ledger.garbage_ratio.step():
        pass


@pytest.mark.parametrize("partitions", [5, 500])
def test_an_object_with_only_live_meta_streams_is_rewritten(partitions: int) -> None:
    ledger = eager_ledger(WORN)
    broker, data = partitions_of_three_streams(ledger, partitions)
    worker = Worker(ledger)
    (row,) = ledger.image[STREAM_SET_OBJECTS]
    walk(ledger)
    assert worker.finds_nothing(), "all of it is live"
    trim(ledger, broker, data, RECORDS - 1)
    assert trimmed_share(ledger.view, row, 1_024) == pytest.approx(0.99)
    walk(ledger)
    task = worker.lease()
    assert [each.object_id for each in task.sources] == [row.object_id]
    assert worker.commit(worker.plan(task)) == DONE
    require_all_found(ledger)
    walk(ledger)
    assert worker.finds_nothing(), "trimmed data is dropped"


def test_one_retained_topic_of_small_records_does_not_keep_all_others() -> None:
    ledger = eager_ledger(WORN)
    broker = ledger.register(0)
    *short, kept = ledger.create_streams(broker, 21, kind="log")
    for each in (*short, kept):
        ledger.open(broker, each, 1)
    ledger.upload(broker, [*((each, 1, 0, 10) for each in short), (kept, 1, 0, 10_000)])
    trim(ledger, broker, short, 10)
    walk(ledger)
    assert len(ledger.garbage_ratio.mostly_trimmed) == 1, (
        "twenty of twenty-one pieces, with 2 % of the offsets, are trimmed"
    )


def test_half_of_an_object_is_not_enough_and_deleted_streams_count_as_trimmed() -> None:
    ledger = eager_ledger(WORN)
    broker, data = partitions_of_three_streams(ledger, 5)
    worker = Worker(ledger)
    trim(ledger, broker, data, RECORDS // 2)
    walk(ledger)
    assert not ledger.garbage_ratio.mostly_trimmed
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=data))
    walk(ledger)
    assert len(ledger.garbage_ratio.mostly_trimmed) == 1
    assert len(worker.lease().streams) == 10


def test_the_ratio_is_checked_again_when_the_object_is_offered() -> None:
    ledger = eager_ledger(WORN)
    broker, data = partitions_of_three_streams(ledger, 5)
    trim(ledger, broker, data, RECORDS - 1)
    walk(ledger)
    first, second = Worker(ledger), Worker(ledger, 501)
    first.lease()
    assert second.finds_nothing(), "already being processed"
    assert not ledger.garbage_ratio.mostly_trimmed


def test_a_walk_over_many_objects_is_divided_into_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_ratio, "OBJECTS_PER_STEP", 4)
    ledger = eager_ledger(WORN)
    broker = ledger.register(0)
    (stream,) = ledger.create_streams(broker, 1)
    ledger.open(broker, stream, 1)
    for number in range(10):
        ledger.upload(broker, [(stream, 1, number, number + 1)])
    steps = 1
    while not ledger.garbage_ratio.step():
        steps += 1
    assert steps == 3
