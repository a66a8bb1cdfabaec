"""Offered tasks: full ones first, each byte about once, a limited search over any number of
objects, and an end.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.compaction import offering, survey
from ponor_controller.domains.compaction.selection import (
    Bounds,
    SetObject,
    StreamObject,
    fullest_tier,
    longest_run,
    overdue,
    score,
)
from ponor_controller.settings import CompactionSettings
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE
from ponor_metadata.nouns.objects import ObjectRow, ObjectState
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId

from services.controller.tests.compacting import DONE, EAGER, Worker, eager_ledger, require_all_found
from services.controller.tests.ledger import Ledger

MIB = 1 << 20
NOW_MS = 10_000_000
BOUNDS = Bounds(NOW_MS, 1024 * MIB, 500)
DEFAULTS = CompactionSettings(compaction_source_bytes_max=1024 * MIB)


def row(number: int, size_bytes: int, age_ms: int = 120_000) -> ObjectRow:
    return ObjectRow(
        ObjectId(number),
        ObjectState.COMMITTED,
        "ns",
        0,
        NodeId(1),
        NodeEpoch(1),
        0,
        size_bytes,
        NOW_MS - age_ms,
        0,
        NO_NODE,
        NO_EPOCH,
        0,
    )


def uploaded(count: int, size_bytes: int = 64 * MIB, age_ms: int = 120_000) -> list[SetObject]:
    return [SetObject(row(number, size_bytes, age_ms), 7_000, False) for number in range(count)]


def compacted(count: int, size_bytes: int, age_ms: int = 120_000) -> list[SetObject]:
    return [SetObject(row(number, size_bytes, age_ms), 7_000, True) for number in range(count)]


def chosen(objects: list[SetObject]) -> list[int]:
    return [each.row.object_id for each in fullest_tier(objects, BOUNDS, DEFAULTS)]


def test_uploads_wait_for_half_a_task_or_for_the_patience() -> None:
    assert chosen(uploaded(7)) == []
    assert chosen(uploaded(8)) == list(range(8))
    assert chosen(uploaded(40)) == list(range(16)), "the oldest, as many as fit"
    assert chosen(uploaded(2, age_ms=300_000)) == [0, 1]
    assert chosen(uploaded(1, age_ms=300_000)) == [], "a single object gains nothing"
    assert chosen(uploaded(40, age_ms=59_999)) == [], "too young"


def test_compacted_objects_are_joined_only_with_several_of_similar_size() -> None:
    assert chosen(compacted(7, 50 * MIB)) == []
    assert chosen(compacted(8, 50 * MIB)) == list(range(8))
    assert chosen(compacted(9, 600 * MIB)) == [], "they have the maximum size"
    assert chosen([*compacted(7, 50 * MIB), *compacted(7, 2 * MIB)]) == []


def test_an_old_set_object_is_split_even_alone() -> None:
    old = uploaded(1, age_ms=7_200_000)
    assert overdue([*old, *uploaded(3)], BOUNDS, DEFAULTS) == old
    assert overdue(old, BOUNDS._replace(source_bytes_max=MIB), DEFAULTS) == []
    larger = [SetObject(row(9, 2_000 * MIB, 7_200_000), 7_000, False)]
    assert overdue([*larger, *old], BOUNDS, DEFAULTS) == old, "it does not block later objects"


def stream_objects(
    sizes: list[int], *, gap_before: int | None = None, age_ms: int = 120_000
) -> list[StreamObject]:
    made: list[StreamObject] = []
    start = 0
    for number, size_bytes in enumerate(sizes):
        start += 5 if number == gap_before else 0
        made.append(StreamObject(row(number, size_bytes, age_ms), start, start + 10))
        start += 10
    return made


def run_of(objects: list[StreamObject]) -> list[int]:
    return [each.row.object_id for each in longest_run(objects, BOUNDS, DEFAULTS)]


def test_stream_objects_are_joined_with_adjacent_ones_of_similar_size() -> None:
    assert run_of(stream_objects([8 * MIB] * 7)) == []
    assert run_of(stream_objects([8 * MIB] * 9)) == list(range(9))
    assert run_of(stream_objects([8 * MIB] * 20, gap_before=9)) == list(range(9, 20))
    assert run_of(stream_objects([600 * MIB] * 9)) == []
    assert run_of(stream_objects([8 * MIB] * 8 + [600 * MIB] + [8 * MIB] * 9)) == list(range(9, 18))
    assert run_of(stream_objects([400 * MIB] + [MIB] * 8)) == [], "copying the large one gains little"
    assert run_of(stream_objects([8 * MIB] * 2, age_ms=3_600_000)) == [0, 1]
    assert run_of(stream_objects([8 * MIB, MIB], age_ms=3_600_000)) == []


def test_the_benefit_is_the_saving_per_copied_byte_and_grows_with_age() -> None:
    rows = [row(1, 64 * MIB)]
    small = score(1_000, 10, rows, BOUNDS, 300_000)
    assert score(2_000, 20, rows, BOUNDS, 300_000) == pytest.approx(2 * small)
    assert score(1_000, 10, [row(1, 128 * MIB)], BOUNDS, 300_000) == pytest.approx(small / 2)
    assert score(1_000, 10, [row(1, 64 * MIB, 900_000)], BOUNDS, 300_000) > 2 * small


# In the ledger


def crowded(ledger: Ledger, uploads: int, streams: int = 2) -> list[int]:
    broker = ledger.register(0)
    ids = ledger.create_streams(broker, streams)
    for each in ids:
        ledger.open(broker, each, 1)
    for number in range(uploads):
        ledger.upload(broker, [(each, 1, number, number + 1) for each in ids])
    return ids


def test_a_search_over_many_objects_reaches_all_of_them_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "SET_OBJECTS_PER_SEARCH", 8)
    monkeypatch.setattr(offering, "WINDOW_ROWS_MIN", 2)
    ledger = eager_ledger(replace(EAGER, compaction_sources_max=4, compaction_fan_in=4))
    crowded(ledger, 30)
    worker = Worker(ledger)
    seen: list[int] = []
    for _ in range(30):
        result = worker.ask()
        seen.extend(each.object_id for each in result.compaction_granted.sources)
    assert len(seen) == len(set(seen)) == 30, "each once"


def test_tasks_are_limited_by_streams_and_ranges() -> None:
    ledger = eager_ledger(replace(EAGER, compaction_ranges_max=10))
    crowded(ledger, 6, streams=4)
    assert len(Worker(ledger).lease().sources) == 2
    ledger = eager_ledger(replace(EAGER, compaction_streams_max=3))
    crowded(ledger, 6, streams=4)
    assert Worker(ledger).finds_nothing(), "each alone is too wide"


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=25),
    st.integers(2, 6),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_compaction_ends_and_every_offset_is_found(
    uploads: list[list[int]], sources_max: int, split: bool
) -> None:
    ledger = eager_ledger(replace(EAGER, compaction_sources_max=sources_max, compaction_survey_interval_ms=1))
    broker = ledger.register(0)
    streams = ledger.create_streams(broker, 3)
    for each in streams:
        ledger.open(broker, each, 1)
    for lengths in uploads:
        pieces = [
            (each, 1, ledger.stream(each).end_offset, ledger.stream(each).end_offset + length)
            for each, length in zip(streams, lengths, strict=True)
            if length
        ]
        if pieces:
            ledger.upload(broker, pieces)
    worker = Worker(ledger)
    for _ in range(200):
        while not ledger.survey.step():
            pass
        result = worker.ask()
        if result.WhichOneof("outcome") == "done":
            break
        task = result.compaction_granted
        body = worker.plan(task, split=split)
        assert worker.commit(body) == DONE
        require_all_found(ledger)
    assert worker.finds_nothing(), "fixed input, bounded work"
    assert not list(ledger.image[COMPACTIONS])


def test_a_survey_counts_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "ROWS_PER_STEP", 3)
    ledger = eager_ledger()
    crowded(ledger, 5)
    worker = Worker(ledger)
    steps = 1
    while not ledger.survey.step():
        steps += 1
    found = ledger.survey.findings
    assert steps == 2
    assert (found.backlog_objects, found.backlog_bytes, found.data_bytes) == (5, 5_000, 5_000)
    assert found.oldest_at_ms == ledger.now_ms
    assert found.metadata_bytes_per_gb > 0
    assert worker.commit(worker.plan(worker.lease(), split=True)) == DONE
    while not ledger.survey.step():
        pass
    assert ledger.survey.findings.backlog_objects == 0
    assert ledger.survey.findings.data_bytes == 4_000


def test_kinds_have_the_numbers_of_the_records() -> None:
    assert records_pb2.COMPACTION_KIND_STREAM_OBJECTS == 3
