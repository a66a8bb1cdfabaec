"""The log cache against a model of plain lists."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.log_cache import LogCache, SealedBlocks, StreamChain
from s3stream.records import StreamRecord, unpinned
from s3stream.settings import RECORD_OVERHEAD_BYTES

STREAMS = 4
BYTES_MAX = 40_000


class LogCacheMachine(RuleBasedStateMachine):
    """Append, seal, carry and free at random; compare every read with the appended records."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = LogCache(bytes_max=BYTES_MAX)
        self.chains = [StreamChain(StreamId(number)) for number in range(STREAMS)]
        self.appended: list[list[StreamRecord]] = [[] for _ in range(STREAMS)]
        self.committed = [0] * STREAMS
        self.sealed: deque[SealedBlocks] = deque()
        self.sequence = 0

    @rule(
        stream=st.integers(0, STREAMS - 1),
        count=st.integers(1, 5),
        size=st.integers(0, 900),
        repeat=st.integers(1, 8),
    )
    def append(self, stream: int, count: int, size: int, repeat: int) -> None:
        for _ in range(repeat):
            log = self.appended[stream]
            base_offset = log[-1].end_offset if log else 0
            record = StreamRecord(
                StreamId(stream), StreamEpoch(1), base_offset, count, -1, memoryview(bytes(size))
            )
            if not self.cache.reserve(record.size_bytes + RECORD_OVERHEAD_BYTES, within_bytes=BYTES_MAX):
                assert self.cache.pinned_bytes + record.size_bytes + RECORD_OVERHEAD_BYTES > BYTES_MAX
                return
            self.cache.now_ns = self.sequence
            self.cache.put(self.chains[stream], record, record.size_bytes, self.sequence)
            log.append(record)
            self.sequence += 1

    @rule(carried=st.sets(st.integers(0, STREAMS - 1)))
    def seal(self, carried: set[int]) -> None:
        sealed = self.cache.seal()
        pieces = sealed.pieces()
        assert [piece.stream_id for piece in pieces] == sorted(piece.stream_id for piece in pieces)
        here = [piece.stream_id for piece in pieces if piece.stream_id in carried]
        if len(here) < len(pieces):
            self.cache.carry(sealed, here)
        self.sealed.append(sealed)

    @precondition(lambda self: self.sealed)
    @rule()
    def commit_oldest(self) -> None:
        sealed = self.sealed.popleft()
        for piece in sealed.pieces():
            assert piece.start_offset == self.committed[piece.stream_id], "commits continue their streams"
            assert piece.size_bytes == sum(r.size_bytes for run in piece.runs for r in run)
            self.committed[piece.stream_id] = piece.end_offset
        self.cache.free(sealed)

    @rule(stream=st.integers(0, STREAMS - 1), fraction=st.floats(0, 1), max_bytes=st.integers(0, 5_000))
    def read(self, stream: int, fraction: float, max_bytes: int) -> None:
        log = self.appended[stream]
        end_offset = log[-1].end_offset if log else 0
        offset = int(end_offset * fraction)
        found = self.chains[stream].fetch(offset, max_bytes)
        first = self.chains[stream].first_offset
        if found is None:
            assert first is None or offset < first
            assert first is not None or offset < end_offset or not log or self.committed[stream] == end_offset
            return
        wanted = [record for record in log if record.end_offset > offset]
        expected: list[StreamRecord] = []
        room = max_bytes
        for record in wanted:
            room -= len(record.payload)
            if expected and room < 0:
                break
            expected.append(record)
        assert found == expected

    @invariant()
    def un_uploaded_data_is_always_here(self) -> None:
        for chain, log, committed in zip(self.chains, self.appended, self.committed, strict=True):
            first = chain.first_offset
            if log and log[-1].end_offset > committed:
                assert first is not None
                assert first <= committed
            assert all(a.end_offset == b.base_offsets[0] for a, b in pairwise(chain.runs))

    @invariant()
    def the_budget_holds_and_every_byte_is_counted(self) -> None:
        assert self.cache.charged_bytes <= BYTES_MAX
        held = sum(run.charged_bytes for chain in self.chains for run in chain.runs)
        assert held == self.cache.charged_bytes

    @invariant()
    def the_oldest_sequence_is_known(self) -> None:
        blocks = [block for sealed in self.sealed for block in sealed.blocks]
        blocks += [block for block in (self.cache.carried, self.cache.active) if block is not None]
        known = min((block.first_sequence for block in blocks if block.runs), default=self.sequence)
        real = min(
            (run.first_sequence for block in blocks for run in block.runs.values()), default=self.sequence
        )
        assert known <= real, "trimming to it would lose a record"


TestLogCache = LogCacheMachine.TestCase
TestLogCache.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def test_a_record_keeps_at_most_four_times_its_bytes_in_memory() -> None:
    frame = memoryview(bytearray(100_000))
    whole, quarter, small = frame[10:], frame[:25_000], frame[5_000:5_100]
    assert unpinned(whole) is whole
    assert unpinned(quarter) is quarter
    assert unpinned(small) == bytes(100)
    assert isinstance(unpinned(small), bytes), "a copy, so that the frame can be freed"
    assert unpinned(b"own") == b"own"
