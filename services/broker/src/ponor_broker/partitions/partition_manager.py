"""Which partitions this broker serves: it follows the image, opens what it leads, closes what it does not.

What lives here: the reconciliation loop and the look-up of open partitions. The image is the wish; the controller's stream epochs decide:
a partition serves only after its streams were opened at its leader epoch. How partitions come and go is `arrivals` and `departures`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.topics import MOVES, TOPICS, PartitionRow
from ponor_runtime.identity import NodeId
from ponor_runtime.tasks import BackgroundTasks
from s3stream.errors import S3StreamError

from ponor_broker.partitions.errors import BrokerFencedError, PartitionError, PartitionInTransitError
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.handoff.handoff_source import Departures
from ponor_broker.partitions.handoff.handoff_target import Arrivals
from ponor_broker.partitions.handoff.transit_parking import TransitParking
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.refused_sequences import RefusedSequences
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topic_configs import TopicConfigs
from ponor_broker.partitions.topics.topics import INTERNAL_TOPICS, Topics
from ponor_broker.serving import Serving

LOG: Final = logging.getLogger("ponor.broker.partitions")

_CONFIG_RECORDS: Final = frozenset({"topic_configs_set", "broker_configs_set"})
_PARTITION_RECORDS: Final = frozenset(
    {"partition_changed", "partition_move_begun", "partition_move_cancelled", "topic_deleted"}
)
_RELEVANT: Final = frozenset(
    {
        "partition_changed",
        "topic_created",
        "topic_deleted",
        "key_put",
        "stream_closed",
        "tenant_created",
        "node_registered",
        "node_fenced",
    }
)

PartitionCallback: TypeAlias = Callable[[Partition], None]


class PartitionManager:
    """Open partitions by name and by id, and the loop that keeps them as the image says."""

    def __init__(
        self,
        topics: Topics,
        admin: TopicAdmin,
        configs: TopicConfigs,
        arrivals: Arrivals,
        departures: Departures,
        parking: TransitParking,
        refused: RefusedSequences,
        serving: Serving,
        *,
        node_id: NodeId,
        tasks: BackgroundTasks,
    ) -> None:
        self.topics = topics
        self._admin = admin
        self._configs = configs
        self._arrivals = arrivals
        self.departures = departures
        self.parking = parking
        self._refused = refused
        self._serving = serving
        self._node_id = node_id
        self._tasks = tasks
        self._open: dict[PartitionKey, Partition] = {}
        self._open_by_name: dict[tuple[str, int], Partition] = {}
        self._closing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._opened_callbacks: dict[str, list[PartitionCallback]] = {}
        self._closed_callbacks: dict[str, list[PartitionCallback]] = {}
        self._stale: dict[PartitionKey, None] = {}  # to be compared with the image
        self._all_stale = True
        self._changed = asyncio.Event()
        self._stopping = False
        serving.listeners.append(self._permission_changed)
        departures.on_sealed = self._tell_closed
        departures.on_kept = self._tell_opened
        departures.on_undecided = self._note_stale
        arrivals.on_opened = self._serve
        arrivals.on_undecided = self._note_stale

    def _permission_changed(self, withdrawn: bool) -> None:
        """While permission is withdrawn nothing is found here. What is open stays open, and appends under way end as they end."""
        if withdrawn:
            self.parking.settle_all()

    # Look-ups

    def __len__(self) -> int:
        return len(self._open)

    def get(self, name: str | bytes, index: int) -> Partition | None:
        """An open partition by topic name or topic id; it may be on its way out."""
        if self._serving.refusal is not None:
            return None
        if isinstance(name, str):
            return self._open_by_name.get((name, index))
        return self._open.get((name, index))

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The partition, serving.

        Raises:
            PartitionInTransitError: in a moment it serves, or is led elsewhere.
            PartitionError: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, or NOT_LEADER_OR_FOLLOWER where it is led elsewhere.
        """
        partition = self.get(topic, index)
        if partition is not None and partition.is_serving:
            return partition
        raise self._absence(topic, index)

    def all(self) -> Sequence[Partition]:
        """Every open partition."""
        return list(self._open.values())

    async def find_settled(self, topic: str | bytes, index: int) -> Partition:
        """`find`, but for those who can wait: a partition on the move is waited for, as long as requests are parked.

        Raises:
            PartitionError: as `find`.
        """
        try:
            return self.find(topic, index)
        except PartitionInTransitError as transit:
            settled = asyncio.Event()
            place = self.parking.park(transit.key, settled.set)
            if place is None:
                raise
            try:
                await settled.wait()
            finally:
                place.leave()
        return self.find(topic, index)

    def note_refusal(self, topic: str | bytes, index: int, batch: ProducerBatch) -> None:
        """A batch was refused that may be taken here in a moment: what its producer sent behind it has to wait for it."""
        row = self.topics.by_id(topic) if isinstance(topic, bytes) else self.topics.by_name(topic)
        if row is not None:
            self._refused.note((row.topic_id, index), batch)

    def _is_in_transit(self, key: PartitionKey) -> bool:
        """Whether it is about to be known who serves a partition that is not served here."""
        if self._stopping:
            return False
        if key in self.departures or self._wish(key) is not None:
            return True
        move = self.topics.image[MOVES].get(key)
        # Elected, as another broker or the controller may have told the client, before this image shows it.
        return move is not None and move.target_id == self._node_id

    def _absence(self, topic: str | bytes, index: int) -> PartitionError:
        if self._serving.refusal is not None:
            return BrokerFencedError(self._serving.refusal)
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
        if self._is_in_transit((row.topic_id, index)):
            raise PartitionInTransitError((row.topic_id, index), f"{row.name}-{index} is on the move")
        return PartitionError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{row.name}-{index} is not open on this broker"
        )

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
        """A batch was applied (None: the image was replaced). Returns whether it speaks of topics, partitions or nodes, or of keys and closed streams, by which leaders are announced."""
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
        if "stream_closed" in kinds:
            for key in self._arrivals.freed_by(batch):
                self._note_stale(key)
        return not kinds.isdisjoint(_RELEVANT)

    def _note_changes(self, batch: RecordBatch) -> None:
        """The image says something new of these partitions: with thousands open, only they are looked at."""
        deleted: set[bytes] = set()
        for record in batch.records:
            if record.HasField("partition_changed"):
                changed = record.partition_changed
                self._arrivals.elected(changed)
                self._note_stale((changed.topic_id, changed.partition))
            elif record.HasField("partition_move_begun"):
                begun = record.partition_move_begun
                self._note_stale((begun.topic_id, begun.partition))
            elif record.HasField("partition_move_cancelled"):
                cancelled = record.partition_move_cancelled
                self._note_stale((cancelled.topic_id, cancelled.partition))
            elif record.HasField("topic_deleted"):
                deleted.add(record.topic_deleted.topic_id)
        if deleted:  # one look at all for a thousand topics that are deleted together
            known = [*self._open, *self._arrivals.waiting, *self.parking.partitions]
            for key in [key for key in known if key[0] in deleted]:
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
        topic = self.topics.image[TOPICS].get(partition.identity.topic_id)
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
        await self._arrivals.wait_settled()

    def _reconcile(self) -> None:
        wanted: list[PartitionRow] = []
        for key in self._take_stale():
            row = self._wish(key)
            self._compare(key, row)
            if row is None:
                self._arrivals.forget(key)
                if not self._is_in_transit(key):
                    self.parking.settled(key)
            elif not (key in self._open or key in self._arrivals or key in self._closing):
                wanted.append(row)  # what opens or closes is looked at again afterwards
        self._arrivals.begin(wanted)

    def _compare(self, key: PartitionKey, row: PartitionRow | None) -> None:
        """Let an open partition begin to leave, stay after all, or end, as the image says; `row` is None where it is not wanted here."""
        partition = self._open.get(key)
        if partition is None:
            self._arrivals.look_again(key)
            return
        move = self.topics.image[MOVES].get(key)
        if row is None or row.leader_epoch != partition.leader_epoch:
            self._begin_close(key, partition, is_deleted=self.topics.image[TOPICS].get(key[0]) is None)
        elif key in self.departures:
            if move is None:
                self.departures.cancelled(key)
        elif not partition.is_serving:
            self._begin_close(key, partition, is_deleted=False)
        elif move is not None:
            self.departures.begin(partition, move)

    def _take_stale(self) -> Sequence[PartitionKey]:
        stale, self._stale = self._stale, {}
        if self._all_stale:
            self._all_stale = False
            # A partition that was deleted, or is led elsewhere by now, is in no row of this broker.
            known = (*self._open, *self._arrivals.waiting, *self.parking.partitions)
            stale.update(dict.fromkeys(known))
            stale.update(((row.topic_id, row.partition), None) for row in self.topics.led_by(self._node_id))
        return list(stale)

    def _wish(self, key: PartitionKey) -> PartitionRow | None:
        """The partition's row, if the image wants it here."""
        row = self.topics.partition(*key)
        return row if row is not None and row.leader_id == self._node_id else None

    # Opening and closing

    def _serve(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            identity = partition.identity
            key = identity.key
            self._open[key] = partition
            self._open_by_name[identity.topic, identity.index] = partition
            self._apply_config(partition)  # the image may have moved on while it opened
            self._note_stale(key)
            self._tell_opened(partition)

    def _tell_opened(self, partition: Partition) -> None:
        """It serves: for the first time, or again, after its move was taken back."""
        for callback in self._opened_callbacks.get(partition.identity.topic, ()):
            callback(partition)
        self.parking.settled(partition.identity.key)

    def _begin_close(self, key: PartitionKey, partition: Partition, *, is_deleted: bool) -> None:
        self._forget(key, partition)
        if self.departures.ended(key, is_deleted=is_deleted):
            return  # its streams are closed
        if is_deleted:
            partition_closing.abandon(partition)  # its streams are gone: there is nothing to wait for
        else:
            self._closing[key] = self._tasks.spawn(self._close(key, partition), f"close {partition.identity}")

    def _forget(self, key: PartitionKey, partition: Partition) -> None:
        self._open.pop(key, None)
        name_key = (partition.identity.topic, partition.identity.index)
        if self._open_by_name.get(name_key) is partition:
            del self._open_by_name[name_key]
        if not partition.service.is_sealed:  # else they were told when it began to leave
            self._tell_closed(partition)

    def _tell_closed(self, partition: Partition) -> None:
        for callback in self._closed_callbacks.get(partition.identity.topic, ()):
            callback(partition)

    async def _close(self, key: PartitionKey, partition: Partition) -> None:
        try:
            await partition_closing.close(partition)
        except S3StreamError as error:
            LOG.warning("partition %s was not closed cleanly: %s", partition.identity, error)
        finally:
            self._closing.pop(key, None)
            self._note_stale(key)

    async def close(self) -> None:
        """Persist and seal every partition; their streams are closed by the stream client, all together."""
        await self.departures.close()
        self._stopping = True
        await self._arrivals.close()
        self._changed.set()
        self.parking.settle_all()
        partitions = list(self._open.items())
        for key, partition in partitions:
            self._forget(key, partition)
        if self._closing:
            await asyncio.wait(list(self._closing.values()))
        waiting = [partition for _, partition in partitions if partition.has_in_flight]
        for _, partition in partitions:
            if not partition.has_in_flight:
                # At once; a task for each of ten thousand would not be.
                await partition_closing.seal(partition)
        await asyncio.gather(*(partition_closing.seal(partition) for partition in waiting))
