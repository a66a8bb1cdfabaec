"""Property test: rows equal a consumer's rows, and both kernels create equal Arrow batches, for any partition
content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_kafka.compression import Codec
from ponor_kafka.record_batch import BatchView
from ponor_spark.clip import AbortedRange, Clip

from spark.tests.decoding import EVERYTHING, decode, rows_of
from spark.tests.stored_batches import MS, Kept, Kind, Log, consumed
from tests.examples import examples

TIMES = st.sampled_from([-1, 0, MS, MS + 1, MS + 50_000]) | st.integers(-(1 << 50), 1 << 50)
FIELDS = st.none() | st.binary(max_size=20) | st.sampled_from([b"", bytes(300)])
HEADERS = st.lists(st.tuples(st.text(max_size=12), FIELDS), max_size=3).map(tuple)


@st.composite
def batches(draw: Any) -> tuple[list[Kept], Kind, int, int]:
    """Records, kind, the offsets of the batch, and those of earlier batches that compaction has dropped."""
    deltas = sorted(draw(st.sets(st.integers(0, 12), max_size=6)))
    records = [Kept(delta, draw(TIMES), draw(FIELDS), draw(FIELDS), draw(HEADERS)) for delta in deltas]
    transactional = draw(st.booleans())
    kind = Kind(
        codec=draw(st.sampled_from(Codec)),
        append_time=draw(st.none() | st.integers(0, 1 << 45)),
        producer_id=draw(st.sampled_from([7, 8])) if transactional else -1,
        transactional=transactional,
        control=transactional and draw(st.booleans()),
        delete_horizon=draw(st.none() | st.integers(0, 1 << 45)),
    )
    return records, kind, draw(st.integers(1, 20)), draw(st.sampled_from([0, 0, 0, 5]))


@dataclass(frozen=True)
class Question:
    log: Log
    clip: Clip
    aborted: list[AbortedRange]
    columns: list[str]
    rows_max: int
    bytes_max: int


@st.composite
def questions(draw: Any) -> Question:
    start = draw(st.integers(0, 1000))
    log = Log(start, shift=draw(st.integers(-1000, start)))
    for records, kind, span, dropped in draw(st.lists(batches(), min_size=1, max_size=6)):
        log.drop(dropped)
        log.add(records, kind, span=span)
    offsets = st.integers(max(0, start - 3), log.end_offset + 3)
    first, last = sorted((draw(offsets), draw(offsets)))
    bases = draw(st.lists(st.tuples(st.sampled_from([7, 8]), offsets, st.integers(0, 30)), max_size=2))
    return Question(
        log,
        Clip("t", 3, first, last),
        [AbortedRange(producer, base, base + more) for producer, base, more in bases],
        draw(st.permutations(EVERYTHING).flatmap(lambda names: st.integers(1, 8).map(lambda n: names[:n]))),
        draw(st.sampled_from([1, 2, 7, 1000])),
        draw(st.sampled_from([1, 50, 1000, 1 << 20])),
    )


@given(questions())
@settings(max_examples=examples(120), deadline=None)
def test_rows_are_those_of_a_consumer(question: Question) -> None:
    log, clip = question.log, question.clip
    aborted = _whole_batches(question)
    found = decode(
        lambda decoder: decoder.feed_block(log.block(), log.shift),
        columns=question.columns,
        clip=clip,
        aborted=aborted,
        rows_max=question.rows_max,
        bytes_max=question.bytes_max,
    )
    expected = consumed(log.batches, clip, aborted)
    assert rows_of(found) == [{name: row[name] for name in question.columns} for row in expected]
    for batch in found:
        assert batch.num_rows <= question.rows_max
        used = sum(_bytes_of(row) for row in rows_of([batch]))
        assert used <= question.bytes_max or batch.num_rows == 1


@given(questions(), st.tuples(TIMES, TIMES).map(sorted))
@settings(max_examples=examples(40), deadline=None)
def test_a_range_of_time_leaves_exactly_its_rows(question: Question, between: list[int]) -> None:
    log, (begin, end) = question.log, between
    found = decode(
        lambda decoder: decoder.feed_block(log.block(), log.shift),
        clip=question.clip,
        time_range_ms=(begin, end),
    )
    everything = consumed(log.batches, question.clip)
    assert rows_of(found) == [row for row in everything if 1000 * begin <= row["timestamp"] < 1000 * end]


def _whole_batches(question: Question) -> list[AbortedRange]:
    """Transactions begin and end between batches: move ranges that begin within a batch to its base, as in a
    real log.
    """
    views = [BatchView(memoryview(batch)) for batch in question.log.batches]
    moved = []
    for aborted in question.aborted:
        inside = [
            v for v in views if v.base_offset <= aborted.last_offset and v.last_offset >= aborted.first_offset
        ]
        if inside:
            moved.append(AbortedRange(aborted.producer_id, inside[0].base_offset, inside[-1].last_offset))
    return moved


def _bytes_of(row: dict[str, Any]) -> int:
    """Without the length prefixes of headers, which also count."""
    headers = row.get("headers") or []
    inner = sum(len(header["key"].encode()) + len(header["value"] or b"") for header in headers)
    return len(row.get("key") or b"") + len(row.get("value") or b"") + inner
