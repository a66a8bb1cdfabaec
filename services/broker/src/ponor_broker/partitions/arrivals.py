"""Partitions that come to this broker: from their election in the image to their service here.

What lives here: who has to wait for the streams that another process still holds, batches of opens side by side, another try where one failed, and how long
it took. The steps of one batch are `partition_opener`'s, which partitions come is `partition_manager`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ponor.metadata.v1.records_pb2 import PartitionChanged, RecordBatch
from ponor_metadata.rows import PartitionRow
from ponor_partition.errors import PartitionCorruptError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import TraceContext
from s3stream.errors import S3StreamError, StreamFencedError, StreamNotFoundError

from ponor_broker.partitions.awaited_streams import AwaitedStreams
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionId, PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_opener import OpenRequest, PartitionOpener
from ponor_broker.partitions.topics import Topics

LOG: Final = logging.getLogger("ponor.broker.partitions")

OPEN_BATCH_MAX: Final = 500
"""Partitions that are opened together: two streams each, as many as one operation takes."""
OPENS_IN_FLIGHT_MAX: Final = 4
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0


class _Election(NamedTuple):
    """When this broker heard that it leads a partition, and whose trace that belongs to."""

    heard_ns: int
    origin: TraceContext | None


class Arrivals:
    """See the module's docstring. `on_opened` gets partitions that serve from now on, `on_undecided` what the image has to be asked about again."""

    def __init__(
        self,
        opener: PartitionOpener,
        topics: Topics,
        *,
        node_id: NodeId,
        clock: Clock,
        tasks: BackgroundTasks,
        telemetry: Telemetry,
    ) -> None:
        self._opener = opener
        self._topics = topics
        self._node_id = node_id
        self._clock = clock
        self._tasks = tasks
        self._telemetry = telemetry
        self._opening: dict[PartitionKey, int] = {}  # leader epoch of the attempt
        self._awaited = AwaitedStreams(topics, node_id)
        self._elections: dict[PartitionKey, _Election] = {}
        self._slots = asyncio.Semaphore(OPENS_IN_FLIGHT_MAX)
        self._settled = asyncio.Event()
        self._stopping = False
        self.on_opened: Callable[[Sequence[Partition]], None] = _nobody
        self.on_undecided: Callable[[PartitionKey], None] = _nobody

    def __contains__(self, key: object) -> bool:
        return key in self._opening

    @property
    def waiting(self) -> Iterable[PartitionKey]:
        """Partitions that wait for their streams."""
        return self._awaited.partitions

    # What the image says

    def begin(self, rows: Sequence[PartitionRow]) -> None:
        """Open partitions that this broker leads, but those whose streams are not closed yet: `freed_by` tells when to ask again."""
        requests = [
            request
            for row in rows
            if not self._awaited.holds_back(row) and (request := self._request(row)) is not None
        ]
        for at in range(0, len(requests), OPEN_BATCH_MAX):
            batch = requests[at : at + OPEN_BATCH_MAX]
            for request in batch:
                self._opening[request.identity.key] = request.leader_epoch
            self._tasks.spawn(self._open_batch(batch), "open partitions")
        self._note_settled()

    def elected(self, changed: PartitionChanged) -> None:
        """The image shows a new leader: the time of this broker's arrivals counts from here."""
        key = (changed.topic_id, changed.partition)
        if changed.leader_id != self._node_id:
            self._elections.pop(key, None)
        elif changed.leader_epoch > 0:  # else it is new, and comes from nowhere
            context = TraceContext.parse(changed.traceparent)
            self._elections[key] = _Election(self._clock.monotonic_ns(), context)

    def freed_by(self, batch: RecordBatch) -> Iterator[PartitionKey]:
        """Partitions that wait for streams of which the batch closed one."""
        return self._awaited.closed_by(batch) if self._awaited else iter(())

    def forget(self, key: PartitionKey) -> None:
        """The partition is not for this broker any more."""
        self._awaited.forget(key)
        self._elections.pop(key, None)

    async def wait_settled(self) -> None:
        """Until every partition that the image gives this broker has been opened, or refused, once."""
        await self._settled.wait()

    def stop(self) -> None:
        """Open nothing any more, and try nothing again."""
        self._stopping = True

    def _request(self, row: PartitionRow) -> OpenRequest | None:
        topic = self._topics.image.topics.get(row.topic_id)
        if topic is None or topic.tenant_id != self._topics.tenant_id:
            return None
        return OpenRequest(
            PartitionId(row.topic_id, topic.name, row.partition), row.leader_epoch, topic.configs
        )

    def _note_settled(self) -> None:
        if not self._opening and not self._awaited:
            self._settled.set()

    # Opening

    async def _open_batch(self, requests: list[OpenRequest]) -> None:
        pause_s = RETRY_S
        while requests and not self._stopping:
            async with self._slots:
                requests = await self._attempt(requests)
            requests = self._still_wanted(requests)
            if requests:
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)
        self._note_settled()

    async def _attempt(self, requests: list[OpenRequest]) -> list[OpenRequest]:
        """One try for all; where that fails, one by one, so that a single bad partition holds up no other. Returns what is left."""
        try:
            self._opened(await self._opener.open(requests))
        except (S3StreamError, PartitionCorruptError, PartitionError) as error:
            if len(requests) == 1:
                return self._refused(requests[0], error)
        else:
            return []
        left: list[OpenRequest] = []
        for request in self._still_wanted(requests):
            left.extend(await self._attempt([request]))
        return left

    def _opened(self, partitions: Sequence[Partition]) -> None:
        now_ns = self._clock.monotonic_ns()
        duration = self._telemetry.histogram("ponor_partition_move_us", step="open")
        tracing = self._telemetry.tracing
        longest_ns = 0
        for partition in partitions:
            key = partition.identity.key
            del self._opening[key]
            election = self._elections.pop(key, None)
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
                "%d partitions serve, at most %d ms after they were elected",
                len(partitions),
                longest_ns // 1_000_000,
            )
        self.on_opened(partitions)

    def _refused(self, request: OpenRequest, error: Exception) -> list[OpenRequest]:
        LOG.warning(
            "partition %s cannot be opened at epoch %d: %s", request.identity, request.leader_epoch, error
        )
        if isinstance(error, StreamFencedError | StreamNotFoundError | PartitionCorruptError):
            # Another owner, a deletion that the image will show, or damage that only a person can mend: no use in trying again.
            self._opening.pop(request.identity.key, None)
            return []
        return [request]

    def _still_wanted(self, requests: list[OpenRequest]) -> list[OpenRequest]:
        left = []
        for request in requests:
            key = request.identity.key
            row = self._topics.partition(*key)
            if (
                row is not None
                and row.leader_id == self._node_id
                and row.leader_epoch == request.leader_epoch
            ):
                left.append(request)
            else:
                self._opening.pop(key, None)
                self.on_undecided(key)
        return left


def _nobody(_: object) -> None:
    """Before anybody listens."""
