"""One pass of a Fetch over partitions: what is in memory, what is not, what is refused.

What lives here: the size rules (KIP-74), the errors per partition and the check for diverging logs (KIP-595), synchronously. Waiting for data or
for the object store is `fetch`, which partitions are looked at is the request's or its session's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import NODE_ENDPOINTS_MIN, FetchNodeEndpoint
from ponor_runtime.disk import Buffer
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.handlers.fetch.partition_fetch import UNKNOWN_PARTITION, PartitionFetch
from ponor_broker.partitions.errors import PartitionError, PartitionInTransitError, storage_error
from ponor_broker.partitions.partition import ANY_EPOCH, Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.state.leader_epochs import UNKNOWN
from ponor_broker.partitions.topics.leader_hints import leader_hint

EPOCH_UNKNOWN: Final = -1
BATCHES_MAX: Final = 16_384
"""Batches of one answer: with more tiny ones than this it counts as full, because gathering them takes the loop's time, not the bytes."""
SMALL_BATCH_BYTES: Final = 2_048
"""Batches that are smaller on average are copied into one buffer: no dearer than to hand the socket each of them, and their own can go."""


class FetchPass:
    """The result of one pass. `bytes_left` is the answer's room; below 1 only a first batch may still be added."""

    __slots__ = (
        "_batches_left",
        "bytes_found",
        "bytes_left",
        "cold",
        "held",
        "is_urgent",
        "parts",
        "unknown",
    )

    def __init__(self, bytes_max: int) -> None:
        self.parts: list[PartitionFetch] = []
        self.cold: list[PartitionFetch] = []
        """Partitions that need the object store."""
        self.held: list[tuple[PartitionFetch, PartitionInTransitError]] = []
        """Partitions on the move: nothing can be said of them yet."""
        self.bytes_found = 0
        self.bytes_left = bytes_max
        self._batches_left = BATCHES_MAX
        self.is_urgent = False
        """There is an error of a partition or a diverging log: nobody waits for more."""
        self.unknown = 0
        """Partitions that nobody has. As in Kafka the others are waited for, so that a client that asks for a deleted topic does not ask in a tight loop."""

    def add_records(self, one: PartitionFetch, records: Sequence[StreamRecord]) -> None:
        """Take records into the answer.

        The first batch of the whole answer is added however big, every other only if answer and partition have room for it.
        """
        if not records:
            return
        payloads: list[Buffer] = [record.payload for record in records]
        if self.bytes_found and len(payloads[0]) > min(self.bytes_left, one.bytes_max):
            return
        one.take(payloads)
        size_bytes = one.records_bytes
        if size_bytes < SMALL_BATCH_BYTES * len(payloads):
            one.records = (b"".join(payloads),)
        self.bytes_found += size_bytes
        self.bytes_left -= size_bytes
        self._batches_left -= len(payloads)
        if self._batches_left <= 0:
            self.bytes_left = 0

    def refuse(self, one: PartitionFetch, error: PartitionError) -> None:
        """The partition's answer is an error."""
        one.refuse(error)
        if error.code in UNKNOWN_PARTITION:
            self.unknown += 1
        else:
            self.is_urgent = True


class FetchReader:
    """Looks at partitions on behalf of Fetch."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions

    def read(
        self,
        wanted: Iterable[PartitionFetch],
        bytes_max: int,
        *,
        version: int,
        isolation_level: int,
        whole: bool,
    ) -> FetchPass:
        """One pass: reads what memory has.

        Args:
            wanted: the partitions, most urgent first.
            bytes_max: room in the answer.
            version: of the request.
            isolation_level: of the request.
            whole: look at all of them; otherwise stop when there is no more room.
        """
        found = FetchPass(bytes_max)
        parts = found.parts
        for one in wanted:
            if found.bytes_left <= 0 and not whole and found.bytes_found:
                break
            parts.append(one)
            try:
                self._read_one(found, one, isolation_level)
            except PartitionInTransitError as transit:
                one.hold()
                found.held.append((one, transit))
            except (PartitionError, S3StreamError) as error:
                self.refuse(found, one, storage_error(error), version=version)
        return found

    def refuse(self, found: FetchPass, one: PartitionFetch, error: PartitionError, *, version: int) -> None:
        """The partition's answer is an error, with a hint where that helps and the client understands it."""
        found.refuse(one, error)
        if version >= NODE_ENDPOINTS_MIN:
            self._add_hint(one, error)

    def refuse_held(self, found: FetchPass, *, version: int) -> None:
        """What has not settled is not waited for any more."""
        held, found.held = found.held, []
        for one, transit in held:
            self.refuse(found, one, transit, version=version)

    def _read_one(self, found: FetchPass, one: PartitionFetch, isolation_level: int) -> None:
        partition = one.partition
        if partition is None or not partition.is_serving:
            partition = self._partitions.find(one.topic, one.index)
        if one.leader_epoch != ANY_EPOCH:
            partition.check_epoch(one.leader_epoch)
        one.begin(partition, isolation_level)
        offset = one.fetch_offset
        if one.last_fetched_epoch != EPOCH_UNKNOWN and self._diverges(one, partition):
            found.is_urgent = True
            return
        room = min(one.bytes_max, found.bytes_left)
        if not one.log_start_offset <= offset < one.high_watermark or (room <= 0 and found.bytes_found):
            partition.check_offset(offset)
            return
        if room < 0:
            raise PartitionError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{partition.identity}: {room} bytes cannot be fetched; ask for 0 or more",
            )
        records = partition.log.read_cached(offset, room)
        if records is None:
            one.is_cold = True
            found.cold.append(one)
        else:
            found.add_records(one, records)

    @staticmethod
    def _diverges(one: PartitionFetch, partition: Partition) -> bool:
        """Whether the record before the fetch offset is not the one that the reader knows; the answer then says where the logs part."""
        epoch, end_offset = partition.epochs.end_offset(one.last_fetched_epoch, partition.log_end_offset)
        if (epoch, end_offset) == UNKNOWN:
            raise PartitionError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition.identity}: nothing was ever written at epoch {one.last_fetched_epoch}",
            )
        if one.fetch_offset < partition.log_start_offset:
            partition.check_offset(one.fetch_offset)
        if epoch >= one.last_fetched_epoch and end_offset >= one.fetch_offset:
            return False
        one.diverging_epoch = (epoch, end_offset)
        return True

    def _add_hint(self, one: PartitionFetch, error: PartitionError) -> None:
        hint = leader_hint(self._partitions.topics, one.topic, one.index, error)
        if hint is not None:
            one.current_leader = (hint.leader_id, hint.leader_epoch)

    def endpoints(self, found: FetchPass) -> list[FetchNodeEndpoint]:
        """Addresses of the leaders that the answer hints at."""
        if not found.is_urgent:
            return []
        ids = {one.current_leader[0]: None for one in found.parts if one.current_leader is not None}
        brokers = [self._partitions.topics.broker(node_id) for node_id in ids]
        return [FetchNodeEndpoint(*broker) for broker in brokers if broker is not None]
