"""Turn records into batches, propose them to the consensus, and call back when they are committed.

The proposer stamps batches with index and cluster time, maintains the overlay that validators read, and
bounds the batches in flight. When leadership ends, it drops the overlay and the batches: waiters get
NOT_LEADER, although the next leader may still commit their batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ponor.common.v1 import error_pb2
from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.overlay import Overlay
from ponor_raft.membership import Membership
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.members import Member, membership_of, voters_set
from ponor_controller.consensus.ports import Consensus, LogEntry
from ponor_controller.kernel.cluster_clock import ClusterClock
from ponor_controller.kernel.commit_waiters import CommitWaiters
from ponor_controller.settings import ControllerSettings

BATCH_OVERHEAD_BYTES = 64
"""Upper bound of the encoded size of index, term and time of a batch."""
RECORD_OVERHEAD_BYTES = 5
GROUP_BYTES_MAX = 128 * 1024
"""An open batch is proposed at this size, so that followers write it while the leader fills the next one."""
GROUP_ROWS_MAX = 500
"""Bound of the rows that all operations of one batch change; a single operation may change more. Every
process applies a batch in one turn of its event loop, and a small record may delete a thousand rows."""

UNDER_WAY_MAX = 3
"""With this many batches in flight, new operations wait for a commit and then share a batch. So a busier
leader puts more operations into a batch. With three, one batch is written, one applied and one filled."""


class Proposer:
    """Proposes batches while this controller leads. Call `committed` with every committed entry, in order."""

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
        self.commits = CommitWaiters(overlay.image)
        self._cluster_clock = cluster_clock
        self._clock = clock
        self._settings = settings
        self._in_flight: deque[tuple[int, int, int]] = deque()
        """(index, bytes, when proposed in ns)."""
        self._in_flight_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._turn = asyncio.Event()
        self._turn.set()
        self._leads = False
        self._open: records_pb2.RecordBatch | None = None
        self._open_bytes = 0
        self._open_rows = 0
        consensus.on_compaction(self._update_room)
        self._commit_us = telemetry.histogram("ponor_controller_commit_seconds")

    @property
    def view(self) -> Overlay:
        """Committed rows, with the changes of proposed batches applied on top."""
        return self._overlay

    @property
    def last_index(self) -> int:
        """Index of the newest proposed batch, or of the newest committed batch if none is in flight."""
        return self._overlay.index

    @property
    def leads(self) -> bool:
        """Whether this controller leads: True between `begin` and `end`."""
        return self._leads

    @property
    def in_flight(self) -> int:
        """Number of batches that are proposed and not yet committed."""
        return len(self._in_flight)

    def now_ms(self) -> int:
        """Cluster time; the stamp of the open batch if there is one."""
        return self._cluster_clock.now_ms() if self._open is None else self._open.cluster_time_ms

    @property
    def has_room(self) -> bool:
        """Whether another batch may be proposed, within the limits of batches and bytes in flight."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until a batch may be proposed."""
        await self._room.wait()

    @property
    def has_turn(self) -> bool:
        """Whether operations may open another batch; False with `UNDER_WAY_MAX` in flight."""
        return self._turn.is_set()

    async def turn(self) -> None:
        """Wait until another batch may be opened."""
        await self._turn.wait()

    @property
    def _accepts(self) -> bool:
        return self._leads and self._consensus.accepts_proposals

    def require_leading(self) -> None:
        """Refuse a decision that only a leader may make.

        Raises:
            OperationError: NOT_LEADER.
        """
        if not self._accepts:
            raise OperationError(
                error_pb2.ERROR_CODE_NOT_LEADER,
                "this controller does not lead, or is transferring its leadership; try again",
                leader_address=self._consensus.leader_address() or "",
            )

    def propose(self, records: Sequence[records_pb2.Record], *, divisible: bool = False) -> int:
        """Propose records as one batch, or as several if they are divisible and do not fit into one.

        Returns:
            The index of the (last) batch.

        Raises:
            OperationError: INVALID_REQUEST when indivisible records do not fit into one batch, NOT_LEADER
                when this controller does not lead or transfers its leadership; nothing was proposed.
                OVERLOADED when the record log has no room for a batch; the batches before it are proposed.
        """
        bytes_max = self._settings.batch_bytes_max
        batches = divide(records, bytes_max)
        if len(batches) > 1 and not divisible:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"the change needs {_records_bytes(records)} bytes of records; the limit of a batch is"
                f" {bytes_max}; request a smaller change",
            )
        for batch in batches:
            self._propose(batch)
        return self.last_index

    def add(self, records: Sequence[records_pb2.Record], *, divisible: bool = False, rows: int = 1) -> int:
        """Add the records of one operation to the open batch, which several operations share.

        The operations share the cost of the batch in the log, the Raft core, followers and subscribers. The
        caller may yield to the event loop between calls, and must call `propose_open` when it has nothing to
        add. `propose` proposes the open batch before its own.

        Args:
            records: of the operation.
            divisible: as for `propose`.
            rows: number of rows that the records change.

        Returns and raises: as `propose`.
        """
        encoded = [record.SerializeToString(deterministic=True) for record in records]
        size_bytes = sum(map(len, encoded)) + RECORD_OVERHEAD_BYTES * len(records)
        if size_bytes > self._settings.batch_bytes_max - BATCH_OVERHEAD_BYTES:
            return self.propose(records, divisible=divisible)
        if self._open is not None and (
            self._open_bytes + size_bytes > GROUP_BYTES_MAX or self._open_rows + rows > GROUP_ROWS_MAX
        ):
            self.require_leading()  # during a transfer of leadership the batch stays open and must not grow
            self._propose_open_or_refuse()
        if self._open is None:
            self.require_leading()
            batch = self._next_batch()
            self._overlay.open_batch(batch)
            self._open, self._open_bytes, self._open_rows = batch, BATCH_OVERHEAD_BYTES, 0
        self._overlay.extend_batch(records, encoded)
        self._open_bytes += size_bytes
        self._open_rows += rows
        return self._open.index

    @property
    def has_open_batch(self) -> bool:
        """Whether a batch is open."""
        return self._open is not None

    def propose_open(self) -> None:
        """Propose the open batch, if there is one.

        During a transfer of leadership, or if the log has no room, the batch stays open. A later call
        proposes it, or `end` drops it.
        """
        batch = self._open
        if batch is not None and self._accepts and self._consensus.room_problem(self._open_bytes) is None:
            assert batch.term == self._consensus.term, "the open batch belongs to another term"
            self._open = None
            sealed = self._overlay.close_batch()
            self._consensus.propose(LogEntry(batch.index, batch.term, sealed.encoded))
            self._note_in_flight(batch.index, len(sealed.encoded))

    def flush(self) -> None:
        """See `Consensus.flush`."""
        self._consensus.flush()

    def propose_members(self, members: Sequence[Member]) -> int:
        """Propose a new list of members of the quorum.

        Returns:
            The index of the batch. The membership changes when the batch is appended to the log.

        Raises:
            OperationError: NOT_LEADER.
            MembershipChangeError: the Raft core does not allow the change now.
        """
        return self._propose([voters_set(members)], membership_of(members))

    def begin(self) -> None:
        """Leadership begins. The image must contain all entries of the log."""
        assert not self._leads
        assert self._overlay.proposed_batches == 0, "batches of an earlier term are still proposed"
        self._leads = True
        self._update_room()

    def end(self, error: OperationError) -> None:
        """Leadership ends: waiters get `error`. Idempotent."""
        self._leads = False
        self._open = None
        self._overlay.drop()
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._update_room()
        self.commits.drop(error)

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Apply committed entries to the image, and call the callbacks that wait for their indices."""
        index = entries[-1].index
        if not self._leads:
            for entry in entries:
                self._overlay.image.replay(entry.data)
            return
        self._overlay.commit(index)
        now_ns = self._clock.monotonic_ns()
        while self._in_flight and self._in_flight[0][0] <= index:
            _, size_bytes, proposed_ns = self._in_flight.popleft()
            self._in_flight_bytes -= size_bytes
            self._commit_us.record((now_ns - proposed_ns) // 1000)
        self._update_room()
        self.commits.advance(index)

    def _propose_open_or_refuse(self) -> None:
        self.propose_open()
        if self._open is not None:
            self._require_room(self._open_bytes)

    def _require_room(self, size_bytes: int) -> None:
        """Refuse a batch for which the log has no room, before the batch is added to the overlay.

        Raises:
            OperationError: OVERLOADED; the caller retries later.
        """
        problem = self._consensus.room_problem(size_bytes)
        if problem is not None:
            raise OperationError(error_pb2.ERROR_CODE_OVERLOADED, f"the record log has no room: {problem}")

    def _propose(self, records: Sequence[records_pb2.Record], membership: Membership | None = None) -> int:
        self.require_leading()
        self._propose_open_or_refuse()
        self._require_room(_records_bytes(records) + RECORD_OVERHEAD_BYTES * len(records))
        batch = self._next_batch()
        batch.records.extend(records)
        if membership is not None:  # propose before the overlay changes, because the core may refuse
            data = batch.SerializeToString(deterministic=True)
            self._consensus.propose(LogEntry(batch.index, batch.term, data, membership, batch))
            taken = self._overlay.propose(batch)
            assert taken == data, "the two encodings of the batch differ"
        else:
            data = self._overlay.propose(batch)
            self._consensus.propose(LogEntry(batch.index, batch.term, data, decoded=batch))
        self._note_in_flight(batch.index, len(data))
        return batch.index

    def _next_batch(self) -> records_pb2.RecordBatch:
        return records_pb2.RecordBatch(
            index=self.last_index + 1,
            term=self._consensus.term,
            cluster_time_ms=max(self.now_ms(), self._overlay.cluster_time_ms),
        )

    def _note_in_flight(self, index: int, size_bytes: int) -> None:
        self._in_flight.append((index, size_bytes, self._clock.monotonic_ns()))
        self._in_flight_bytes += size_bytes
        self._update_room()

    def _update_room(self) -> None:
        settings = self._settings
        if (
            len(self._in_flight) < settings.proposals_max
            and self._in_flight_bytes < settings.proposals_bytes_max
            and self._consensus.has_room
        ):
            self._room.set()
        else:
            self._room.clear()
        if self._room.is_set() and len(self._in_flight) < UNDER_WAY_MAX:
            self._turn.set()
        else:
            self._turn.clear()


def divide(records: Sequence[records_pb2.Record], bytes_max: int) -> list[list[records_pb2.Record]]:
    """Divide records into runs that each fit into a batch of `bytes_max`. A larger record forms its own
    run.
    """
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
    return sum([record.ByteSize() for record in records])
