"""One synchronous pass of a Fetch over partitions: data from memory, partitions that need objects, errors.

Implements the size rules (KIP-74), errors per partition, and the check for diverging logs (KIP-595).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import NODE_ENDPOINTS_MIN, FetchNodeEndpoint
from ponor_runtime.disk import Buffer
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.handlers.fetch.committed_reads import ReadRecords, from_memory
from ponor_broker.handlers.fetch.partition_fetch import UNKNOWN_PARTITION, PartitionFetch
from ponor_broker.partitions.errors import PartitionError, PartitionInTransitError, storage_error
from ponor_broker.partitions.partition import ANY_EPOCH, Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.state.leader_epochs import UNKNOWN
from ponor_broker.partitions.topics.announcements import leader_hint
from ponor_broker.partitions.transactions.aborted_index import Aborted

EPOCH_UNKNOWN: Final = -1
BATCHES_MAX: Final = 16_384
"""Batches of one answer. An answer with more batches counts as full: for small batches, the time on the event
loop depends on their number, not on their bytes."""
SMALL_BATCH_BYTES: Final = 2_048
"""If the average batch is smaller, all batches are copied into one buffer. The copy costs no more than
passing each batch to the socket, and the originals can be freed.
"""


class FetchPass:
    """Result of one pass. `bytes_left` is the answer's room; below 1, only the first batch of the
    answer may still be added.
    """

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
        """Partitions in transit, without a result yet."""
        self.bytes_found = 0
        self.bytes_left = bytes_max
        self._batches_left = BATCHES_MAX
        self.is_urgent = False
        """Whether a partition has an error or a diverging log, so that the request must not wait."""
        self.unknown = 0
        """Partitions that do not exist. As in Kafka, the request still waits for the others, so
        that a client that fetches a deleted topic does not poll in a tight loop."""

    def add_records(
        self, one: PartitionFetch, records: Sequence[StreamRecord], aborted: Aborted | None = None
    ) -> None:
        """Add records to the answer, with `read_committed` also their aborted transactions.

        The first batch of the whole answer is added regardless of its size, every other batch only if there
        is room for it in the answer and in the partition's share.
        """
        if not records:
            return
        payloads: list[Buffer] = [record.payload for record in records]
        if self.bytes_found and len(payloads[0]) > min(self.bytes_left, one.bytes_max):
            return
        one.take(payloads)
        if aborted is not None:
            one.aborted_transactions = aborted
        size_bytes = one.records_bytes
        if size_bytes < SMALL_BATCH_BYTES * len(payloads):
            one.records = (b"".join(payloads),)
        self.bytes_found += size_bytes
        self.bytes_left -= size_bytes
        self._batches_left -= len(payloads)
        if self._batches_left <= 0:
            self.bytes_left = 0

    def refuse(self, one: PartitionFetch, error: PartitionError) -> None:
        """Set an error as the partition's result."""
        one.refuse(error)
        if error.code in UNKNOWN_PARTITION:
            self.unknown += 1
        else:
            self.is_urgent = True


class FetchReader:
    """Reads partitions for Fetch."""

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
        """Run one pass over partitions and read from memory.

        Args:
            wanted: the partitions, most urgent first.
            bytes_max: room in the answer.
            version: of the request.
            isolation_level: of the request.
            whole: check all partitions; otherwise stop when there is no room left.
        """
        found = FetchPass(bytes_max)
        self.read_into(found, wanted, version=version, isolation_level=isolation_level, whole=whole)
        return found

    def read_into(
        self,
        found: FetchPass,
        wanted: Iterable[PartitionFetch],
        *,
        version: int,
        isolation_level: int,
        whole: bool,
    ) -> None:
        """As `read`, for further partitions of a pass."""
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

    def refuse(self, found: FetchPass, one: PartitionFetch, error: PartitionError, *, version: int) -> None:
        """Set an error as the partition's result, with a leader hint if it helps and the version
        has the field.
        """
        found.refuse(one, error)
        if version >= NODE_ENDPOINTS_MIN:
            self._add_hint(one, error)

    def refuse_held(self, found: FetchPass, *, version: int) -> None:
        """Refuse partitions that are still in transit."""
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
        if not one.log_start_offset <= offset < one.readable_end or (room <= 0 and found.bytes_found):
            partition.check_offset(offset)
            return
        if room < 0:
            raise PartitionError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{partition.identity}: the request allows {room} bytes; it must allow 0 or more",
            )
        records = partition.log.read_cached(offset, room)
        read: ReadRecords | None = None
        if records is not None:
            read = from_memory(partition, offset, records) if one.is_committed else ReadRecords(records)
        if read is None:
            one.is_cold = True
            found.cold.append(one)
        else:
            found.add_records(one, *read)

    @staticmethod
    def _diverges(one: PartitionFetch, partition: Partition) -> bool:
        """Return whether the reader's log differs from the partition's log; the answer then contains the
        point of divergence.
        """
        epoch, end_offset = partition.epochs.end_offset(one.last_fetched_epoch, partition.log_end_offset)
        if (epoch, end_offset) == UNKNOWN:
            raise PartitionError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition.identity}: leader epoch {one.last_fetched_epoch} is unknown",
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

    def endpoints(self, found: FetchPass, listener: str) -> list[FetchNodeEndpoint]:
        """Return the addresses of the hinted leaders at the client's listener."""
        if not found.is_urgent:
            return []
        ids = {one.current_leader[0]: None for one in found.parts if one.current_leader is not None}
        brokers = [self._partitions.topics.broker(node_id, listener) for node_id in ids]
        return [FetchNodeEndpoint(*broker) for broker in brokers if broker is not None]
