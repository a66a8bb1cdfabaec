"""Partitions that this broker takes over, from their election in the image until they serve.

Decides which partitions must wait for streams that another process still holds, opens the others in
batches, retries failed ones after a pause, and gives up a partition that is to move again before it
serves. `partition_opener` opens one batch, `target_release` gives partitions up, and
`partition_manager` selects the partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ponor.metadata.v1.records_pb2 import PartitionChanged, RecordBatch
from ponor_metadata.nouns.topics import MOVES, TOPICS, MoveRow, PartitionRow
from ponor_partition.errors import PartitionCorruptError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import TraceContext
from s3stream.errors import S3StreamError, StreamFencedError, StreamNotFoundError

from ponor_broker.partitions.handoff.awaited_streams import AwaitedStreams
from ponor_broker.partitions.handoff.move_operations import LedPartition
from ponor_broker.partitions.handoff.opening import Opening, OpenRequest, Stage
from ponor_broker.partitions.handoff.partition_opener import PartitionOpener, Refusal
from ponor_broker.partitions.handoff.target_release import TargetRelease
from ponor_broker.partitions.identity import PartitionId, PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.topics.topics import Topics

LOG: Final = logging.getLogger("ponor.broker.partitions")

OPEN_BATCH_MAX: Final = 500
"""Partitions that are opened together, with two streams each or more."""
OPENS_IN_FLIGHT_MAX: Final = 4
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0
FENCED_TRIES_MAX: Final = 2
"""After this many refusals because the partition's epoch is outdated, the broker requests a new epoch. The
first refusal may only mean that the image lags."""
RELEASES_IN_FLIGHT_MAX: Final = 64
WATCH_S: Final = 0.5
"""Interval of the check for overdue moves of partitions that wait for their streams."""
STOP_S_MAX: Final = 5.0
STOP_LOOK_S: Final = 0.05


class _Election(NamedTuple):
    """When the image showed this broker's election, and the trace of the move."""

    heard_ns: int
    origin: TraceContext | None


class _WatchedMove(NamedTuple):
    """A move of a partition that waits for its streams, and its deadline."""

    move: MoveRow
    until_ns: int


class HandoffTarget:
    """The partitions that this broker leads and does not serve yet."""

    def __init__(
        self,
        opener: PartitionOpener,
        release: TargetRelease,
        topics: Topics,
        *,
        node_id: NodeId,
        clock: Clock,
        tasks: BackgroundTasks,
        telemetry: Telemetry,
        on_opened: Callable[[Sequence[Partition]], None],
        on_undecided: Callable[[PartitionKey], None],
    ) -> None:
        """`on_opened` is called with partitions that serve from now on, `on_undecided` with partitions that
        must be compared with the image again.
        """
        self._opener = opener
        self._release = release
        self._topics = topics
        self._node_id = node_id
        self._clock = clock
        self._tasks = tasks
        self._telemetry = telemetry
        self._openings: dict[PartitionKey, Opening] = {}
        self._awaited = AwaitedStreams(topics, node_id)
        self._watched_moves: dict[PartitionKey, _WatchedMove] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._again: dict[Opening, None] = {}
        self._leaving: deque[Opening] = deque()
        self._releases = 0
        self._elections: dict[PartitionKey, _Election] = {}
        self._slots = asyncio.Semaphore(OPENS_IN_FLIGHT_MAX)
        self._settled = asyncio.Event()
        self._stopping = False
        self._on_opened = on_opened
        self._on_undecided = on_undecided

    def __contains__(self, key: object) -> bool:
        return key in self._openings

    @property
    def waiting(self) -> Iterable[PartitionKey]:
        """Partitions that wait for their streams, or are being opened."""
        return [*self._awaited.partitions, *self._openings]

    # Changes of the image

    def begin(self, rows: Sequence[PartitionRow]) -> None:
        """Open partitions that this broker leads. Partitions whose streams are still open at another process
        wait; `freed_by` yields them later.
        """
        openings: list[Opening] = []
        for row in rows:
            if self._awaited.holds_back(row):
                self._watch_move((row.topic_id, row.partition))
                continue
            if (request := self._request(row)) is None:
                continue
            opening = self._openings[request.identity.key] = Opening(request, self._interrupted)
            if self._must_leave(opening):
                self._begin_release(opening)
            else:
                openings.append(opening)
        for at in range(0, len(openings), OPEN_BATCH_MAX):
            self._tasks.spawn(self._open_batch(openings[at : at + OPEN_BATCH_MAX]), "open partitions")
        self._note_settled()

    def check_again(self, key: PartitionKey) -> None:
        """Handle an image change of a partition that is being opened: it may have to be given up or
        dropped.
        """
        opening = self._openings.get(key)
        if opening is None or opening.stage is Stage.LEAVING:
            return
        if opening.stage is Stage.OPENING:
            if not self._is_wanted(opening) or self._must_leave(opening):
                opening.interrupt()
        else:
            self._goes_on(opening)

    def elected(self, changed: PartitionChanged) -> None:
        """Note an election in the image: the open time of a partition of this broker begins now."""
        key = (changed.topic_id, changed.partition)
        if changed.leader_id != self._node_id:
            self._elections.pop(key, None)
        elif changed.leader_epoch > 0:  # otherwise the partition is new
            context = TraceContext.parse(changed.traceparent)
            self._elections[key] = _Election(self._clock.monotonic_ns(), context)

    def freed_by(self, batch: RecordBatch) -> Iterator[PartitionKey]:
        """Yield the waiting partitions that have a stream which the batch closed."""
        return self._awaited.closed_by(batch) if self._awaited else iter(())

    def forget(self, key: PartitionKey) -> None:
        """Drop a partition that this broker no longer leads."""
        self._awaited.forget(key)
        self._elections.pop(key, None)

    async def wait_settled(self) -> None:
        """Wait until this broker has tried once to open each partition that the image assigns to it."""
        await self._settled.wait()

    async def close(self) -> None:
        """Stop opening partitions; no stream is opened after the return. The caller closes all streams,
        including those that attempts opened.
        """
        self._stopping = True
        for opening in self._openings.values():
            opening.interrupt()
        deadline_ns = self._clock.monotonic_ns() + int(STOP_S_MAX * 1e9)
        while any(opening.stage is Stage.OPENING for opening in self._openings.values()):
            if self._clock.monotonic_ns() > deadline_ns:
                LOG.warning("some attempts to open partitions did not end within %g s", STOP_S_MAX)
                return
            await self._clock.sleep(STOP_LOOK_S)

    def _request(self, row: PartitionRow) -> OpenRequest | None:
        topic = self._topics.image[TOPICS].get(row.topic_id)
        if topic is None or topic.tenant_id != self._topics.tenant_id:
            return None
        return OpenRequest(
            PartitionId(row.topic_id, topic.name, row.partition), row.leader_epoch, topic.configs
        )

    def _is_wanted(self, opening: Opening) -> bool:
        row = self._topics.partition(*opening.key)
        return (
            row is not None
            and row.leader_id == self._node_id
            and row.leader_epoch == opening.request.leader_epoch
        )

    def _must_leave(self, opening: Opening) -> bool:
        """Return whether the partition moves away before it serves, or was refused permanently at this
        epoch.
        """
        is_refused = isinstance(opening.error, StreamFencedError) and opening.failures >= FENCED_TRIES_MAX
        return is_refused or opening.key in self._topics.image[MOVES]

    def _note_settled(self) -> None:
        if not self._awaited and all(_was_refused(opening) for opening in self._openings.values()):
            self._settled.set()

    # Opening

    async def _open_batch(self, openings: list[Opening]) -> None:
        batch, pause_s = object(), RETRY_S
        for opening in openings:
            opening.batch = batch
        while openings and not self._stopping:
            async with self._slots:
                # The image may have changed while the batch waited for its turn.
                openings = [one for one in openings if one.batch is batch and self._goes_on(one)]
                for opening in openings:
                    opening.begin_attempt()
                refusals = await self._attempt(openings) if openings and not self._stopping else []
            openings = [one for one in openings if one.batch is batch and one.stage is Stage.OPENING]
            for opening in openings:
                opening.stage = Stage.WAITING
            openings = [opening for opening in openings if self._goes_on(opening)]
            _log_refusals(refusals, openings)
            self._note_settled()
            if openings:
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)
        self._note_settled()

    def _open_again(self, opening: Opening) -> None:
        """Retry in one batch with all other partitions that retry at the same time. A task for each partition
        would be too much.
        """
        if not self._again:
            self._tasks.spawn(self._open_those_again(), "open partitions")
        self._again[opening] = None

    async def _open_those_again(self) -> None:
        await self._clock.sleep(RETRY_S)
        again, self._again = list(self._again), {}
        for at in range(OPEN_BATCH_MAX, len(again), OPEN_BATCH_MAX):
            self._tasks.spawn(self._open_batch(again[at : at + OPEN_BATCH_MAX]), "open partitions")
        await self._open_batch(again[:OPEN_BATCH_MAX])

    async def _attempt(self, openings: Sequence[Opening]) -> list[Refusal]:
        """Try once to open all partitions. If an operation for several of them was refused, try each half
        separately, so that one bad partition does not block the others.
        """
        final: list[Refusal] = []
        for refusal in await self._opener.open(openings, self._opened):
            refused = refusal.openings
            if len(refused) == 1:
                refused[0].failures += 1
                refused[0].error = refusal.error
                final.append(refusal)
                continue
            middle = len(refused) // 2
            for half in (refused[:middle], refused[middle:]):
                wanted = [opening for opening in half if self._is_wanted(opening)]
                if wanted and not self._stopping:
                    final += await self._attempt(wanted)
        return final

    def _interrupted(self, opening: Opening) -> None:
        """Handle a partition that left its attempt after an interruption."""
        if not self._stopping and self._goes_on(opening):
            self._open_again(opening)  # the reason for the interruption has passed

    def _goes_on(self, opening: Opening) -> bool:
        """Return whether to retry. Otherwise drop the partition or give it up."""
        if opening.stage is not Stage.WAITING:
            return False
        if not self._is_wanted(opening):
            self._drop(opening)
            return False
        if self._must_leave(opening):
            self._begin_release(opening)
            return False
        return True

    def _drop(self, opening: Opening) -> None:
        """Drop a partition that was deleted, or is led at another epoch; its streams are deleted or
        closed.
        """
        opening.stage = Stage.OVER
        del self._openings[opening.key]
        self._release.abandon(opening)
        self._on_undecided(opening.key)

    def _opened(self, opened: Sequence[tuple[Opening, Partition]]) -> None:
        now_ns = self._clock.monotonic_ns()
        duration = self._telemetry.histogram("ponor_partition_move_seconds", step="open")
        tracing = self._telemetry.tracing
        longest_ns = 0
        for opening, partition in opened:
            opening.stage = Stage.OVER
            del self._openings[opening.key]
            election = self._elections.pop(opening.key, None)
            if election is None:
                continue
            longest_ns = max(longest_ns, now_ns - election.heard_ns)
            duration.record((now_ns - election.heard_ns) // 1000)
            if tracing is not None and election.origin is not None:
                about = {
                    "messaging.destination.name": partition.identity.topic,
                    "messaging.destination.partition.id": str(partition.index),
                }
                span = tracing.begin(
                    "ponor.move.open", about, parent=election.origin, started_ns=election.heard_ns
                )
                if span is not None:
                    span.end()
        if longest_ns:
            LOG.info(
                "%d partitions serve, at most %d ms after their election",
                len(opened),
                longest_ns // 1_000_000,
            )
        self._on_opened([partition for _, partition in opened])

    # Releases

    def _watch_move(self, key: PartitionKey) -> None:
        """Handle a new move of a partition that still waits for its streams. This broker gives up the
        partition when the streams are closed. If that takes too long, it cancels the move.
        """
        move, watched = self._topics.image[MOVES].get(key), self._watched_moves.get(key)
        if move is None or (watched is not None and watched.move == move):
            return
        until_ns = self._clock.monotonic_ns() + (move.elect_at_ms - move.begun_at_ms) * 1_000_000
        self._watched_moves[key] = _WatchedMove(move, until_ns)
        if self._watcher is None or self._watcher.done():
            self._watcher = self._tasks.spawn(self._cancel_long_moves(), "cancel moves of awaited partitions")

    async def _cancel_long_moves(self) -> None:
        while self._watched_moves and not self._stopping:
            await self._clock.sleep(WATCH_S)
            if staying := list(self._take_long_moves()):
                reason = (
                    "the streams are still open at a broker whose write-ahead log is being recovered; try"
                    " again later"
                )
                await self._release.cancel_moves(staying, reason)

    def _take_long_moves(self) -> Iterator[LedPartition]:
        """Remove and yield partitions that still wait for their streams after the deadline of their move."""
        now_ns = self._clock.monotonic_ns()
        for key, (move, until_ns) in list(self._watched_moves.items()):
            if now_ns < until_ns:
                continue
            del self._watched_moves[key]
            is_same = self._topics.image[MOVES].get(key) == move and key in self._awaited.partitions
            row = self._topics.partition(*key)
            if is_same and row is not None:
                yield LedPartition(key, row.leader_epoch)

    def _begin_release(self, opening: Opening) -> None:
        opening.stage = Stage.LEAVING
        self._leaving.append(opening)
        if self._releases < RELEASES_IN_FLIGHT_MAX:
            self._releases += 1
            self._tasks.spawn(self._give_up_leaving(), "give up partitions")

    async def _give_up_leaving(self) -> None:
        try:
            while self._leaving and not self._stopping:
                await self._give_up(self._leaving.popleft())
        finally:
            self._releases -= 1

    async def _give_up(self, opening: Opening) -> None:
        try:
            await self._release.upload(opening)
        except (TimeoutError, S3StreamError) as error:
            reason = str(error) or "the uploads before the move did not complete in time"
            LOG.warning("%s stays here: %s", opening.request.identity, reason)
            await self._release.cancel_moves([opening.name], reason)
            opening.stage, opening.failures = Stage.WAITING, 0
            self._open_again(opening)
            return
        await self._release.close_and_elect(opening, lambda: self._stopping or not self._is_wanted(opening))
        if not self._stopping:
            self._drop(opening)


def _was_refused(opening: Opening) -> bool:
    """Return whether an attempt failed for a lasting reason: another owner, a deletion, or damage
    that needs an operator.
    """
    return isinstance(opening.error, StreamFencedError | StreamNotFoundError | PartitionCorruptError)


def _log_refusals(refusals: Sequence[Refusal], left: Sequence[Opening]) -> None:
    """Log one line per attempt; partitions that this broker no longer leads are omitted."""
    still = set(map(id, left))
    reported = [refusal for refusal in refusals if id(refusal.openings[0]) in still]
    if reported:
        request = reported[0].openings[0].request
        LOG.warning(
            "%d partitions could not be opened, retrying; one is %s at epoch %d: %s",
            len(reported),
            request.identity,
            request.leader_epoch,
            reported[0].error,
        )
