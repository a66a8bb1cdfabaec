"""Which partitions this broker serves: it follows the image, opens what it leads, closes what it does not.

What lives here: the reconciliation loop and the look-up of open partitions. The image is the wish; the controller's stream epochs decide:
a partition serves only after its streams were opened at its leader epoch. How a partition opens is `partition_opener`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_kafka.errors import ErrorCode
from ponor_metadata.rows import PartitionRow
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.tasks import BackgroundTasks
from s3stream.errors import S3StreamError, StreamFencedError, StreamNotFoundError

from ponor_broker.partitions.errors import PartitionCorruptError, PartitionError
from ponor_broker.partitions.partition import Partition, PartitionId
from ponor_broker.partitions.partition_opener import OpenRequest, PartitionOpener
from ponor_broker.partitions.topic_admin import TopicAdmin
from ponor_broker.partitions.topic_configs import TopicConfigs
from ponor_broker.partitions.topics import INTERNAL_TOPICS, Topics

LOG: Final = logging.getLogger("ponor.broker.partitions")

OPEN_BATCH_MAX: Final = 500
"""Partitions that are opened together: two streams each, as many as one operation takes."""
OPENS_IN_FLIGHT_MAX: Final = 4
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0
_CONFIG_RECORDS: Final = frozenset({"topic_configs_set", "broker_configs_set"})
_PARTITION_RECORDS: Final = frozenset({"partition_changed", "topic_deleted"})
_RELEVANT: Final = frozenset(
    {
        "partition_changed",
        "topic_created",
        "topic_deleted",
        "tenant_created",
        "node_registered",
        "node_fenced",
    }
)

PartitionKey: TypeAlias = tuple[bytes, int]
PartitionCallback: TypeAlias = Callable[[Partition], None]


class PartitionManager:
    """Open partitions by name and by id, and the loop that keeps them as the image says."""

    def __init__(
        self,
        topics: Topics,
        admin: TopicAdmin,
        opener: PartitionOpener,
        configs: TopicConfigs,
        *,
        node_id: NodeId,
        clock: Clock,
        tasks: BackgroundTasks,
    ) -> None:
        self.topics = topics
        self._admin = admin
        self._opener = opener
        self._configs = configs
        self._node_id = node_id
        self._clock = clock
        self._tasks = tasks
        self._open: dict[PartitionKey, Partition] = {}
        self._open_by_name: dict[tuple[str, int], Partition] = {}
        self._opening: dict[PartitionKey, int] = {}  # leader epoch of the attempt
        self._closing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._opened_callbacks: dict[str, list[PartitionCallback]] = {}
        self._closed_callbacks: dict[str, list[PartitionCallback]] = {}
        self._stale: dict[PartitionKey, None] = {}  # to be compared with the image
        self._all_stale = True
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._open_slots = asyncio.Semaphore(OPENS_IN_FLIGHT_MAX)
        self._stopping = False
        self._is_fenced = False

    def fence(self, is_fenced: bool) -> None:
        """Serve nothing, or serve again: what is open stays open meanwhile, and appends under way end as they end."""
        self._is_fenced = is_fenced

    # Look-ups

    def __len__(self) -> int:
        return len(self._open)

    def get(self, name: str | bytes, index: int) -> Partition | None:
        """An open partition by topic name or topic id."""
        if self._is_fenced:
            return None
        if isinstance(name, str):
            return self._open_by_name.get((name, index))
        return self._open.get((name, index))

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The partition, serving.

        Raises:
            PartitionError: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, or NOT_LEADER_OR_FOLLOWER while it opens or is led elsewhere.
        """
        partition = self.get(topic, index)
        if partition is not None and partition.is_serving:
            return partition
        raise self._absence(topic, index)

    def all(self) -> Sequence[Partition]:
        """Every open partition."""
        return list(self._open.values())

    def is_opening(self, topic_id: bytes, index: int) -> bool:
        """Whether this broker is about to serve the partition."""
        return (topic_id, index) in self._opening

    def _absence(self, topic: str | bytes, index: int) -> PartitionError:
        by_id = isinstance(topic, bytes)
        row = self.topics.by_id(topic) if isinstance(topic, bytes) else self.topics.by_name(topic)
        shown = topic.hex() if isinstance(topic, bytes) else topic
        if row is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return PartitionError(code, f"there is no topic {shown}")
        if self.topics.partition(row.topic_id, index) is None:
            return PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {row.name} has no partition {index}"
            )
        why = "this broker hears no controller" if self._is_fenced else "it is not open on this broker"
        return PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{row.name}-{index} is not served: {why}")

    def on_opened(self, name: str, callback: PartitionCallback) -> None:
        """Call back for every partition of a topic that opens here from now on, and at once for those already open."""
        self._opened_callbacks.setdefault(name, []).append(callback)
        for partition in self.all():
            if partition.identity.topic == name:
                callback(partition)

    def on_closed(self, name: str, callback: PartitionCallback) -> None:
        """Call back when a partition of a topic starts closing here, before its streams close."""
        self._closed_callbacks.setdefault(name, []).append(callback)

    async def ensure_topic(self, name: str, *, partitions: int, internal: bool = False) -> None:
        """Return once the topic exists in the image; make it when it is missing.

        Raises:
            PartitionError: the controller refused or cannot be reached; the code is retriable for internal topics.
        """
        assert not internal or name in INTERNAL_TOPICS, f"{name} is no internal topic of Kafka"
        await self._admin.ensure(name, partitions=partitions)

    # Following the image

    def image_changed(self, batch: RecordBatch | None) -> bool:
        """A batch was applied (None: the image was replaced). Returns whether it speaks of topics, partitions or nodes."""
        if batch is None:
            self._apply_configs(None)
            self._all_stale = True
            self._changed.set()
            return True
        kinds = {record.WhichOneof("kind") for record in batch.records}
        if not kinds.isdisjoint(_CONFIG_RECORDS):
            self._apply_configs(batch)
        if not kinds.isdisjoint(_PARTITION_RECORDS):
            self._note_changes(batch)
        return not kinds.isdisjoint(_RELEVANT)

    def _note_changes(self, batch: RecordBatch) -> None:
        """The image says something new of these partitions: with thousands open, only they are looked at."""
        for record in batch.records:
            if record.HasField("partition_changed"):
                changed = record.partition_changed
                self._note_stale((changed.topic_id, changed.partition))
            elif record.HasField("topic_deleted"):
                topic_id = record.topic_deleted.topic_id
                for key in [key for key in self._open if key[0] == topic_id]:
                    self._note_stale(key)

    def _note_stale(self, key: PartitionKey) -> None:
        self._stale[key] = None
        self._changed.set()

    def _apply_configs(self, batch: RecordBatch | None) -> None:
        """Settings changed: those of the topics that are named, or of all where a broker's did."""
        records = () if batch is None else batch.records
        of_all = batch is None or any(record.HasField("broker_configs_set") for record in records)
        topic_ids = {
            record.topic_configs_set.topic_id for record in records if record.HasField("topic_configs_set")
        }
        for (topic_id, _), partition in self._open.items():
            if of_all or topic_id in topic_ids:
                self._apply_config(partition)

    def _apply_config(self, partition: Partition) -> None:
        topic = self.topics.image.topics.get(partition.identity.topic_id)
        if topic is not None:
            config = self._configs.of(topic)
            if config is not partition.config:
                partition.apply_config(config)

    async def run(self) -> None:
        """Reconcile for ever; a background task."""
        self._changed.set()
        while not self._stopping:
            await self._changed.wait()
            self._changed.clear()
            self._reconcile()

    def notice_failures(self) -> None:
        """Reconcile if a partition stopped serving by itself."""
        for key, partition in self._open.items():
            if not partition.is_serving:
                self._note_stale(key)

    async def wait_settled(self) -> None:
        """Until every partition that the image gives this broker has been opened, or refused, once."""
        await self._settled.wait()

    def _reconcile(self) -> None:
        requests: list[OpenRequest] = []
        for key in self._take_stale():
            row = self._wish(key)
            partition = self._open.get(key)
            if partition is not None and (
                row is None or row.leader_epoch != partition.leader_epoch or not partition.is_serving
            ):
                self._begin_close(key, partition, is_deleted=self.topics.image.topics.get(key[0]) is None)
            if row is None or key in self._open or key in self._opening or key in self._closing:
                continue  # what opens or closes is looked at again afterwards
            requests.extend(self._request(row))
        for at in range(0, len(requests), OPEN_BATCH_MAX):
            batch = requests[at : at + OPEN_BATCH_MAX]
            for request in batch:
                self._opening[request.identity.topic_id, request.identity.index] = request.leader_epoch
            self._tasks.spawn(self._open_batch(batch), "open partitions")
        self._note_settled()

    def _take_stale(self) -> Sequence[PartitionKey]:
        stale, self._stale = self._stale, {}
        if self._all_stale:
            self._all_stale = False
            stale = dict.fromkeys(self._open)
            stale.update(((row.topic_id, row.partition), None) for row in self.topics.led_by(self._node_id))
        return list(stale)

    def _wish(self, key: PartitionKey) -> PartitionRow | None:
        """The partition's row, if the image wants it here."""
        row = self.topics.partition(*key)
        return row if row is not None and row.leader_id == self._node_id else None

    def _request(self, row: PartitionRow) -> list[OpenRequest]:
        topic = self.topics.image.topics.get(row.topic_id)
        if topic is None or topic.tenant_id != self.topics.tenant_id:
            return []
        return [
            OpenRequest(PartitionId(row.topic_id, topic.name, row.partition), row.leader_epoch, topic.configs)
        ]

    def _note_settled(self) -> None:
        if not self._opening:
            self._settled.set()

    # Opening

    async def _open_batch(self, requests: list[OpenRequest]) -> None:
        pause_s = RETRY_S
        while requests and not self._stopping:
            async with self._open_slots:
                requests = await self._attempt(requests)
            requests = self._still_wanted(requests)
            if requests:
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)
        self._note_settled()

    async def _attempt(self, requests: list[OpenRequest]) -> list[OpenRequest]:
        """One try for all; where that fails, one by one, so that a single bad partition holds up no other. Returns what is left."""
        try:
            self._serve(await self._opener.open(requests))
        except (S3StreamError, PartitionCorruptError, PartitionError) as error:
            if len(requests) == 1:
                return self._refused(requests[0], error)
        else:
            return []
        left: list[OpenRequest] = []
        for request in self._still_wanted(requests):
            left.extend(await self._attempt([request]))
        return left

    def _refused(self, request: OpenRequest, error: Exception) -> list[OpenRequest]:
        key = (request.identity.topic_id, request.identity.index)
        LOG.warning(
            "partition %s cannot be opened at epoch %d: %s", request.identity, request.leader_epoch, error
        )
        if isinstance(error, StreamFencedError | StreamNotFoundError | PartitionCorruptError):
            # Another owner, a deletion that the image will show, or damage that only a person can mend: no use in trying again.
            self._opening.pop(key, None)
            return []
        return [request]

    def _still_wanted(self, requests: list[OpenRequest]) -> list[OpenRequest]:
        left = []
        for request in requests:
            key = (request.identity.topic_id, request.identity.index)
            row = self.topics.partition(*key)
            if (
                row is not None
                and row.leader_id == self._node_id
                and row.leader_epoch == request.leader_epoch
            ):
                left.append(request)
            else:
                self._opening.pop(key, None)
                self._note_stale(key)
        return left

    def _serve(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            identity = partition.identity
            key = (identity.topic_id, identity.index)
            self._opening.pop(key, None)
            self._open[key] = partition
            self._open_by_name[identity.topic, identity.index] = partition
            self._apply_config(partition)  # the image may have moved on while it opened
            self._note_stale(key)
            for callback in self._opened_callbacks.get(identity.topic, ()):
                callback(partition)

    # Closing

    def _begin_close(self, key: PartitionKey, partition: Partition, *, is_deleted: bool) -> None:
        self._forget(key, partition)
        if is_deleted:
            partition.abandon()  # its streams are gone: there is nothing to wait for
        else:
            self._closing[key] = self._tasks.spawn(self._close(key, partition), f"close {partition.identity}")

    def _forget(self, key: PartitionKey, partition: Partition) -> None:
        self._open.pop(key, None)
        name_key = (partition.identity.topic, partition.identity.index)
        if self._open_by_name.get(name_key) is partition:
            del self._open_by_name[name_key]
        for callback in self._closed_callbacks.get(partition.identity.topic, ()):
            callback(partition)

    async def _close(self, key: PartitionKey, partition: Partition) -> None:
        try:
            await partition.close()
        except S3StreamError as error:
            LOG.warning("partition %s was not closed cleanly: %s", partition.identity, error)
        finally:
            self._closing.pop(key, None)
            self._note_stale(key)

    async def close(self) -> None:
        """Persist and seal every partition; their streams are closed by the stream client, all together."""
        self._stopping = True
        self._changed.set()
        partitions = list(self._open.items())
        for key, partition in partitions:
            self._forget(key, partition)
        if self._closing:
            await asyncio.wait(list(self._closing.values()))
        waiting = [partition for _, partition in partitions if partition.has_in_flight]
        for _, partition in partitions:
            if not partition.has_in_flight:
                await partition.seal()  # at once; a task for each of ten thousand would not be
        await asyncio.gather(*(partition.seal() for partition in waiting))
