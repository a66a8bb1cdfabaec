"""Reads of committed records, as Kafka's consumers read with `read_committed`, and checks of each answer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ponor_kafka.control_records import ControlType, control_type
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ponor_kafka.record_batch import BatchView, split_batches
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transactions import CommittedRead, Entry
from ponor_cluster_simulation.workload.connections import Connections, NotSentError
from ponor_cluster_simulation.workload.consumer import RECORD_BYTES_MAX, RETRIABLE
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.shared_transactions import TOPIC, SharedTransactions

READ_COMMITTED: Final = 1
VERSIONS: Final = (4, 11, 12)
BYTES_MAX: Final = (1, 2_000, 1 << 20)


class Pass(NamedTuple):
    """Committed records of [start, end), and the offsets of the answer."""

    records: Sequence[tuple[int, Entry]]
    end: int
    stable: int
    high_watermark: int

    @property
    def is_at_end(self) -> bool:
        """Whether nothing follows, and no transaction is open."""
        return self.end == self.stable == self.high_watermark


class CommittedLog:
    """One client's reads of one topic. Every pass becomes part of the history.

    Attributes:
        reads: number of records read.
    """

    def __init__(
        self,
        name: str,
        connections: Connections,
        leaders: Leaders,
        shared: SharedTransactions,
    ) -> None:
        self._name = name
        self._connections = connections
        self._leaders = leaders
        self._shared = shared
        self._checks = shared.checks
        self._known: dict[int, tuple[int, int]] = {}
        """Last stable offset and high watermark of a partition; neither falls."""
        self.reads = 0

    async def read(self, runtime: Runtime, partition: int, start: int, *, wait_ms: int = 0) -> Pass | None:
        """Read a partition from an offset; None if its leader did not answer or refused."""
        leader = self._leaders.leader_of(partition)
        if leader is None:
            self._leaders.doubt()
            return None
        below = runtime.randomness.below
        row = FetchPartition(
            partition=partition, fetch_offset=start, partition_max_bytes=BYTES_MAX[below(len(BYTES_MAX))]
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=READ_COMMITTED,
            session_epoch=-1,
            topics=[FetchTopic(TOPIC, partitions=[row])],
        )
        address, version = self._leaders.addresses[leader], VERSIONS[below(len(VERSIONS))]
        try:
            answer = await self._connections.ask(runtime, address, request, version, FetchResponse)
        except (ConnectionClosedError, NotSentError):
            self._leaders.doubt()
            return None
        found = self._take(answer.responses[0].partitions[0], start, answer)
        if found is not None:
            now_s = runtime.clock.monotonic_ns() / 1e9
            self._shared.note_stable(partition, found.stable, found.high_watermark, now_s)
        return found

    def _take(self, row: PartitionData, start: int, answer: FetchResponse) -> Pass | None:
        partition, code = row.partition_index, ErrorCode(row.error_code)
        if code is not ErrorCode.NONE:
            assert code in RETRIABLE, f"{self._name}: partition {partition} at {start}: {code.name}"
            self._leaders.hint(partition, row.current_leader, answer.node_endpoints)
            return None
        stable, end = row.last_stable_offset, row.high_watermark
        known_stable, known_end = self._known.get(partition, (0, 0))
        self._checks.require(
            50,
            known_stable <= stable <= end and known_end <= end,
            f"{self._name}: partition {partition} had the last stable offset {known_stable} and the high"
            f" watermark {known_end}, and now has {stable} and {end}",
        )
        self._known[partition] = (stable, end)
        batches = [] if not row.records else list(split_batches(memoryview(row.records)))  # type: ignore[arg-type]
        reached = batches[-1].next_offset if batches else start
        self._checks.require(
            50,
            reached <= max(stable, start),
            f"{self._name}: partition {partition} was read to {reached}, beyond the last stable offset"
            f" {stable}",
        )
        records = [one for one in visible(batches, row.aborted_transactions or ()) if one[0] >= start]
        self.reads += len(records)
        self._shared.history.reads.append(CommittedRead(self._name, partition, start, reached, records))
        return Pass(records, reached, stable, end)


def visible(batches: Iterable[BatchView], aborted: Iterable[AbortedTransaction]) -> list[tuple[int, Entry]]:
    """Return the records that a consumer delivers, by the algorithm of Kafka's consumer."""
    begins = [(row.first_offset, row.producer_id) for row in aborted]
    heapq.heapify(begins)
    skipped: set[int] = set()
    found: list[tuple[int, Entry]] = []
    for batch in batches:
        batch.check_crc()
        while begins and begins[0][0] <= batch.last_offset:
            skipped.add(heapq.heappop(begins)[1])
        if batch.is_control:
            if control_type(batch) == ControlType.ABORT:
                skipped.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in skipped):
            for record in batch.records(RECORD_BYTES_MAX):
                assert record.value is not None
                found.append((record.offset, Entry.decode(bytes(record.value))))
    return found
