"""The proposer: turns decided records into batches, and tells when they are committed.

What lives here: the stamp of time and index, the overlay that later decisions are made against, the bound on what is in flight, and who waits for which
index. Nothing here decides; nothing here reads the image except through the overlay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ponor.common.v1 import error_pb2
from ponor.metadata.v1 import records_pb2
from ponor_metadata.overlay import Overlay
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry

from ponor_controller.cluster_clock import ClusterClock
from ponor_controller.consensus.ports import Consensus, LogEntry
from ponor_controller.settings import ControllerSettings

BATCH_OVERHEAD_BYTES = 64
"""Index, term, time, and the length before each record, generously."""
RECORD_OVERHEAD_BYTES = 5


class Proposer:
    """Proposes for one term of leadership. `committed` must hear of every commit, right after the consensus did."""

    def __init__(
        self,
        consensus: Consensus,
        overlay: Overlay,
        cluster_clock: ClusterClock,
        clock: Clock,
        settings: ControllerSettings,
        telemetry: Telemetry,
    ) -> None:
        self._consensus = consensus
        self._overlay = overlay
        self._cluster_clock = cluster_clock
        self._clock = clock
        self._settings = settings
        self._in_flight: deque[tuple[int, int, int]] = deque()
        """(index, bytes, when proposed in ns)."""
        self._in_flight_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._commit_us = telemetry.histogram("ponor_controller_commit_us")

    @property
    def view(self) -> Overlay:
        """What validators read: committed rows, and above them what is proposed."""
        return self._overlay

    @property
    def last_index(self) -> int:
        """Index of the newest proposed batch, or of the newest committed one when nothing is in flight."""
        return self._overlay.index

    @property
    def in_flight(self) -> int:
        """Batches proposed and not committed."""
        return len(self._in_flight)

    def now_ms(self) -> int:
        """Cluster time."""
        return self._cluster_clock.now_ms()

    async def room(self) -> None:
        """Wait until something may be proposed."""
        await self._room.wait()

    def propose(self, records: Sequence[records_pb2.Record], *, divisible: bool = False) -> int:
        """Propose records as one batch, or, when they may be divided and one batch cannot hold them, as several.

        Returns:
            The index of the (last) batch.

        Raises:
            OperationError: INVALID_REQUEST when they do not fit into one batch and must; nothing was proposed then.
        """
        bytes_max = self._settings.batch_bytes_max
        batches = divide(records, bytes_max)
        if len(batches) > 1 and not divisible:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"the change needs {_records_bytes(records)} bytes of records, one batch holds {bytes_max}; ask for less at once",
            )
        for batch in batches:
            self._propose(batch)
        return self.last_index

    def when_committed(self, index: int, callback: Callable[[], None]) -> None:
        """Call back once everything up to `index` is committed; at once if it is. To be asked with `last_index` or below."""
        if index <= self._overlay.image.index:
            callback()
            return
        if self._waiting and self._waiting[-1][0] > index:
            # A replay of an operation that is still in flight: it has its own place in the order.
            position = next(at for at, (other, _) in enumerate(self._waiting) if other > index)
            self._waiting.insert(position, (index, callback))
            return
        self._waiting.append((index, callback))

    async def committed_up_to(self, index: int) -> None:
        """Wait for a commit."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        self.when_committed(index, wake)
        await done

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Everything up to the last entry is committed: fold it into the image and wake who waits for it."""
        index = entries[-1].index
        self._overlay.commit(index)
        now_ns = self._clock.monotonic_ns()
        while self._in_flight and self._in_flight[0][0] <= index:
            _, size_bytes, proposed_ns = self._in_flight.popleft()
            self._in_flight_bytes -= size_bytes
            self._commit_us.record((now_ns - proposed_ns) // 1000)
        self._update_room()
        while self._waiting and self._waiting[0][0] <= index:
            _, callback = self._waiting.popleft()
            callback()

    def _propose(self, records: Sequence[records_pb2.Record]) -> None:
        batch = records_pb2.RecordBatch(
            index=self.last_index + 1,
            term=self._consensus.term,
            cluster_time_ms=max(self.now_ms(), self._overlay.cluster_time_ms),
            records=records,
        )
        data = self._overlay.propose(batch)
        self._in_flight.append((batch.index, len(data), self._clock.monotonic_ns()))
        self._in_flight_bytes += len(data)
        self._update_room()
        self._consensus.propose(LogEntry(batch.index, batch, data))

    def _update_room(self) -> None:
        settings = self._settings
        if (
            len(self._in_flight) < settings.proposals_max
            and self._in_flight_bytes < settings.proposals_bytes_max
        ):
            self._room.set()
        else:
            self._room.clear()


def divide(records: Sequence[records_pb2.Record], bytes_max: int) -> list[list[records_pb2.Record]]:
    """Cut records into runs that each fit into a batch of `bytes_max`; a larger single record is a run of its own."""
    runs: list[list[records_pb2.Record]] = [[]]
    room = bytes_max - BATCH_OVERHEAD_BYTES
    for record in records:
        size_bytes = record.ByteSize() + RECORD_OVERHEAD_BYTES
        if runs[-1] and size_bytes > room:
            runs.append([])
            room = bytes_max - BATCH_OVERHEAD_BYTES
        runs[-1].append(record)
        room -= size_bytes
    return runs


def _records_bytes(records: Sequence[records_pb2.Record]) -> int:
    return sum(record.ByteSize() for record in records)
