"""The partitions that this broker serves: look-ups, and reconciliation with the metadata image.

The image shows which partitions this broker leads. It may be outdated, so a partition serves only after the
controller has opened its streams at its leader epoch. `handoff_target` opens partitions, `handoff_source`
moves them away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.topics import MOVES, TOPICS, PartitionRow
from ponor_runtime.identity import NodeId
from ponor_runtime.tasks import BackgroundTasks
from s3stream.errors import S3StreamError

from ponor_broker.partitions.errors import BrokerFencedError, PartitionError, PartitionInTransitError
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.handoff.handoff_source import HandoffSource
from ponor_broker.partitions.handoff.handoff_target import HandoffTarget
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.open_partitions import OpenPartitions
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topics import Topics
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


class PartitionManager:
    """Holds the open partitions by name and id, and runs the loop that follows the image."""

    def __init__(
        self,
        topics: Topics,
        registry: OpenPartitions,
        target: HandoffTarget,
        source: HandoffSource,
        refused: RefusedSequences,
        serving: Serving,
        *,
        node_id: NodeId,
        tasks: BackgroundTasks,
    ) -> None:
        self.topics = topics
        self.registry = registry
        self._target = target
        self.source = source
        self.parking = registry.parking
        self._refused = refused
        self._serving = serving
        self._node_id = node_id
        self._tasks = tasks
        self._open = registry.by_key
        self._by_name = registry.by_name
        self._closing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._all_stale = True
        self._stopping = False
        serving.listeners.append(self._permission_changed)

    def _permission_changed(self, withdrawn: bool) -> None:
        """Refuse parked requests when the permission to answer is withdrawn. Until it is restored,
        look-ups find no partition; open partitions stay open, and running appends complete.
        """
        if withdrawn:
            self.parking.settle_all()

    # Look-ups

    def __len__(self) -> int:
        return len(self._open)

    def get(self, name: str | bytes, index: int) -> Partition | None:
        """Return an open partition by topic name or id; it may be closing."""
        if self._serving.refusal is not None:
            return None
        if isinstance(name, str):
            return self._by_name.get((name, index))
        return self._open.get((name, index))

    def find(self, topic: str | bytes, index: int) -> Partition:
        """Return a serving partition.

        Raises:
            PartitionInTransitError: the partition will soon serve, here or at another broker.
            PartitionError: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, or NOT_LEADER_OR_FOLLOWER
                if another broker leads the partition.
        """
        partition = self.get(topic, index)
        if partition is not None and partition.is_serving:
            return partition
        raise self._absence(topic, index)

    def all(self) -> Sequence[Partition]:
        """Every open partition."""
        return list(self._open.values())

    async def find_settled(self, topic: str | bytes, index: int) -> Partition:
        """Return a serving partition. Wait for a partition in transit, at most as long as a parked request
        waits.

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
        """Note a batch that was refused temporarily: later batches of its producer must wait for it."""
        row = self.topics.by_id(topic) if isinstance(topic, bytes) else self.topics.by_name(topic)
        if row is not None:
            self._refused.note((row.topic_id, index), batch)

    def _is_in_transit(self, key: PartitionKey) -> bool:
        """Return whether a partition that does not serve here now will soon serve at some broker."""
        if self._stopping:
            return False
        if key in self.source or self._led_row(key) is not None:
            return True
        move = self.topics.image[MOVES].get(key)
        # The image may not show this broker's election yet.
        return move is not None and move.target_id == self._node_id

    def _absence(self, topic: str | bytes, index: int) -> PartitionError:
        if self._serving.refusal is not None:
            return BrokerFencedError(self._serving.refusal)
        by_id = isinstance(topic, bytes)
        row = self.topics.by_id(topic) if isinstance(topic, bytes) else self.topics.by_name(topic)
        shown = topic.hex() if isinstance(topic, bytes) else topic
        if row is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return PartitionError(code, f"topic {shown} does not exist")
        if self.topics.partition(row.topic_id, index) is None:
            return PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {row.name} has no partition {index}"
            )
        if self._is_in_transit((row.topic_id, index)):
            raise PartitionInTransitError((row.topic_id, index), f"{row.name}-{index} is moving")
        return PartitionError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{row.name}-{index} is not open on this broker"
        )

    # Following the image

    def image_changed(self, batch: RecordBatch | None) -> bool:
        """Handle an applied batch; None: the image was replaced.

        Returns whether answers about topics, partitions or brokers may have changed. Keys and closed streams
        count, because they may end the announcement of a new topic.
        """
        if batch is None:
            self.registry.apply_configs(None)
            self._all_stale = True
            self.registry.changed.set()
            return True
        kinds = {record.WhichOneof("kind") for record in batch.records}
        if not kinds.isdisjoint(_CONFIG_RECORDS):
            self.registry.apply_configs(batch)
        if not kinds.isdisjoint(_PARTITION_RECORDS):
            self._note_changes(batch)
        if "stream_closed" in kinds:
            for key in self._target.freed_by(batch):
                self.registry.note_stale(key)
        return not kinds.isdisjoint(_RELEVANT)

    def _note_changes(self, batch: RecordBatch) -> None:
        """Mark the partitions in the batch as stale, so that only these are checked, and not thousands of
        others.
        """
        deleted: set[bytes] = set()
        for record in batch.records:
            kind = record.WhichOneof("kind")
            if kind == "topic_deleted":
                deleted.add(record.topic_deleted.topic_id)
            elif kind in _PARTITION_RECORDS:
                change = getattr(record, kind)
                self.registry.note_stale((change.topic_id, change.partition))
                if kind == "partition_changed":
                    self._target.elected(change)
        if deleted:  # one pass for all topics that were deleted together
            known = [*self._open, *self._target.waiting, *self.parking.partitions]
            for key in [key for key in known if key[0] in deleted]:
                self.registry.note_stale(key)

    async def run(self) -> None:
        """Reconcile stale partitions with the image after each change, until `close`."""
        changed = self.registry.changed
        changed.set()
        while not self._stopping:
            await changed.wait()
            changed.clear()
            self._reconcile()

    def notice_failures(self) -> None:
        """Mark failed partitions as stale."""
        for key, partition in self._open.items():
            if not partition.is_serving:
                self.registry.note_stale(key)

    async def wait_settled(self) -> None:
        """Wait until this broker has tried once to open each partition that the image assigns to it."""
        await self._target.wait_settled()

    def _reconcile(self) -> None:
        wanted: list[PartitionRow] = []
        for key in self._take_stale():
            row = self._led_row(key)
            self._compare(key, row)
            if row is None:
                self._target.forget(key)
                if not self._is_in_transit(key):
                    self.parking.settled(key)
            elif not (key in self._open or key in self._target or key in self._closing):
                wanted.append(row)  # partitions that open or close are checked again afterwards
        self._target.begin(wanted)

    def _compare(self, key: PartitionKey, row: PartitionRow | None) -> None:
        """Start or cancel the move of an open partition, or close it, as the image shows; `row` is
        None if another broker leads it.
        """
        partition = self._open.get(key)
        if partition is None:
            self._target.check_again(key)
            return
        move = self.topics.image[MOVES].get(key)
        if row is None or row.leader_epoch != partition.leader_epoch:
            self._begin_close(key, partition, is_deleted=self.topics.image[TOPICS].get(key[0]) is None)
        elif key in self.source:
            if move is None:
                self.source.cancelled(key)
        elif not partition.is_serving:
            self._begin_close(key, partition, is_deleted=False)
        elif move is not None:
            self.source.begin(partition, move)

    def _take_stale(self) -> Sequence[PartitionKey]:
        stale = self.registry.take_stale()
        if self._all_stale:
            self._all_stale = False
            # `led_by` does not return partitions that were deleted or have another leader now.
            known = (*self._open, *self._target.waiting, *self.parking.partitions)
            stale.update(dict.fromkeys(known))
            stale.update(((row.topic_id, row.partition), None) for row in self.topics.led_by(self._node_id))
        return list(stale)

    def _led_row(self, key: PartitionKey) -> PartitionRow | None:
        """Return the partition's row if this broker leads it."""
        row = self.topics.partition(*key)
        return row if row is not None and row.leader_id == self._node_id else None

    # Opening and closing

    def _begin_close(self, key: PartitionKey, partition: Partition, *, is_deleted: bool) -> None:
        self.registry.remove(partition)
        if self.source.ended(key, is_deleted=is_deleted):
            return  # the move has closed its streams
        if is_deleted:
            partition_closing.abandon(partition)  # its streams were deleted: nothing to wait for
        else:
            self._closing[key] = self._tasks.spawn(self._close(key, partition), f"close {partition.identity}")

    async def _close(self, key: PartitionKey, partition: Partition) -> None:
        try:
            await partition_closing.close(partition, self.source.turns)
        except S3StreamError as error:
            LOG.warning("partition %s was not closed cleanly: %s", partition.identity, error)
        finally:
            self._closing.pop(key, None)
            self.registry.note_stale(key)

    async def close(self) -> None:
        """Persist every partition and refuse requests. The stream client closes all streams together."""
        await self.source.close()
        self._stopping = True
        await self._target.close()
        self.registry.changed.set()
        self.parking.settle_all()
        partitions = self.all()
        for partition in partitions:
            self.registry.remove(partition)
        if self._closing:
            await asyncio.wait(list(self._closing.values()))
        waiting = [partition for partition in partitions if partition.has_in_flight]
        for partition in partitions:
            if not partition.has_in_flight:
                # Sequentially: a task for each of ten thousand partitions would be slower.
                await partition_closing.seal(partition, self.source.turns)
        await asyncio.gather(*(partition_closing.seal(partition, self.source.turns) for partition in waiting))
