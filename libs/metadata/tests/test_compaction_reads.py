"""The read index finds the same offsets after any compaction: old offsets in new set objects, split commits,
trimmed ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS, STREAM_SET_OBJECTS_AT
from ponor_metadata.nouns.streams import STREAM_OBJECTS
from ponor_metadata.nouns.streams import STREAMS as STREAMS_TABLE
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from libs.metadata.tests.metadata_kit import (
    COMPACTOR,
    NODE_A,
    NODE_B,
    Log,
    closed,
    compaction_ended,
    compaction_leased,
    created,
    dead_objects,
    destroyed,
    obj,
    opened,
    prepared,
    registered,
    so,
    sso,
    stream,
    trimmed,
)

STREAMS = [stream(number) for number in (1, 2, 3)]
Run = tuple[StreamId, int, int]


@dataclass
class Compacted:
    """A cluster of two brokers and a worker, in which uploads, moves, trims and compactions follow each
    other.
    """

    log: Log = field(default_factory=Log)
    node: NodeId = NODE_A
    epoch: int = 1
    objects: int = 0
    tasks: int = 0

    def __post_init__(self) -> None:
        self.log.commit(registered(COMPACTOR, role=2))
        self.log.commit(*(created(each) for each in STREAMS), *(opened(each, 1) for each in STREAMS))

    def next_object(self, node_id: NodeId) -> ObjectId:
        self.objects += 1
        self.log.commit(prepared(obj(self.objects), 1, node_id, expires_at_ms=1 << 50))
        return obj(self.objects)

    def end_of(self, stream_id: StreamId) -> int:
        row = self.log.image[STREAMS_TABLE].get(stream_id)
        assert row is not None
        return row.end_offset

    def upload(self, lengths: tuple[int, int, int]) -> None:
        runs = [
            (each, self.end_of(each), self.end_of(each) + length)
            for each, length in zip(STREAMS, lengths, strict=True)
            if length
        ]
        if runs:
            self.log.commit(sso(self.next_object(self.node), *runs, node_id=self.node))

    def move(self) -> None:
        self.log.commit(*(closed(each, self.epoch) for each in STREAMS))
        self.epoch += 1
        self.node = NODE_B if self.node == NODE_A else NODE_A
        self.log.commit(*(opened(each, self.epoch, self.node) for each in STREAMS))

    def trim(self, which: int, percent: int) -> None:
        row = self.log.image[STREAMS_TABLE].get(STREAMS[which])
        assert row is not None
        start = row.start_offset + (row.end_offset - row.start_offset) * percent // 100
        if start > row.start_offset:
            dead = dead_objects(self.log.image, {row.stream_id: start})
            self.log.commit(trimmed(row.stream_id, start), *([destroyed(*dead)] if dead else []))

    def compact(self, node_id: NodeId, picked: list[bool], own_object: list[bool]) -> None:
        """Compact any set objects of a node, not only adjacent ones.

        A run gets its own object or a place in the set object.
        """
        rows = self.log.image[STREAM_SET_OBJECTS].find(STREAM_SET_OBJECTS_AT, node_id)
        sources = [row for row, take in zip(rows, picked, strict=False) if take]
        if not sources:
            return
        self.tasks += 1
        ids = [row.object_id for row in sources]
        self.log.commit(compaction_leased(self.tasks, *ids, node_id=node_id))
        pieces = [each for row in sources for each in row.ranges.decoded]
        runs = self.joined([(each.stream_id, each.start_offset, each.end_offset) for each in pieces])
        apart = [run for i, run in enumerate(runs) if own_object[i % len(own_object)]]
        together = [run for run in runs if run not in apart]
        outputs = [so(self.next_object(COMPACTOR), *run) for run in apart]
        if together:
            outputs.append(sso(self.next_object(COMPACTOR), *together, node_id=node_id))
        self.log.commit(destroyed(*ids), *outputs, compaction_ended(self.tasks))

    def joined(self, pieces: list[Run]) -> list[Run]:
        runs: list[Run] = []
        for stream_id, start, end in sorted(pieces):
            row = self.log.image[STREAMS_TABLE].get(stream_id)
            assert row is not None
            if end <= row.start_offset:
                continue
            if runs and (runs[-1][0], runs[-1][2]) == (stream_id, start):
                runs[-1] = (stream_id, runs[-1][1], end)
            else:
                runs.append((stream_id, start, end))
        return runs

    def require_every_fetch_finds_all(self) -> None:
        for stream_id in STREAMS:
            row = self.log.image[STREAMS_TABLE].get(stream_id)
            assert row is not None
            for start in range(row.start_offset, row.end_offset):
                offset = start
                for piece in find_pieces(self.log.image, stream_id, start, row.end_offset, limit=1_000):
                    assert piece.start_offset == offset
                    assert self.holds(piece.object_id, stream_id, piece.start_offset, piece.end_offset)
                    offset = piece.end_offset
                assert offset == row.end_offset, f"stream {stream_id}: nothing found at {offset}"

    def holds(self, object_id: ObjectId, stream_id: StreamId, start: int, end: int) -> bool:
        single = self.log.image[STREAM_OBJECTS].get(object_id)
        if single is not None:
            return single.stream_id == stream_id and single.start_offset <= start < end <= single.end_offset
        several = self.log.image[STREAM_SET_OBJECTS].get(object_id)
        assert several is not None
        held = several.ranges.decoded.find(stream_id, start)
        return held is not None and end <= held.end_offset


uploads = st.tuples(*[st.integers(0, 4)] * 3).map(lambda lengths: ("upload", lengths))
moves = st.just(("move", ()))
trims = st.tuples(st.integers(0, 2), st.integers(1, 100)).map(lambda each: ("trim", each))
compactions = st.tuples(
    st.sampled_from((NODE_A, NODE_B)),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=1, max_size=4),
).map(lambda each: ("compact", each))
histories = st.lists(st.one_of(uploads, uploads, uploads, compactions, trims, moves), max_size=30)


@given(histories)
@settings(max_examples=150, deadline=None)
def test_every_fetch_finds_the_same_offsets_after_a_compaction(
    history: list[tuple[str, tuple[object, ...]]],
) -> None:
    cluster = Compacted()
    for step, arguments in history:
        getattr(cluster, step)(*([arguments] if step == "upload" else arguments))
        if step != "upload":
            cluster.require_every_fetch_finds_all()


def test_a_new_set_object_with_old_offsets_hides_no_other_object() -> None:
    cluster = Compacted()
    for _ in range(6):
        cluster.upload((2, 1, 0))
    cluster.compact(NODE_A, [True, False, True, False, True, False], [False])
    cluster.move()
    cluster.upload((3, 3, 3))
    cluster.compact(NODE_A, [False, True, True], [True, False])
    cluster.require_every_fetch_finds_all()
