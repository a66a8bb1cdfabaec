"""Reads with `read_committed`: records below the last stable offset, and their aborted transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ponor_kafka.record_batch import BatchView
from ponor_partition.errors import PartitionCorruptError
from s3stream.records import StreamRecord

from ponor_broker.partitions.log.stream_port import StreamUnreadableError
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.transactions.aborted_index import Aborted
from ponor_broker.partitions.transactions.open_transactions import ALL_STABLE


class ReadRecords(NamedTuple):
    """Records of a partition. `aborted` contains the aborted transactions of exactly the records' offsets;
    None for `read_uncommitted`.
    """

    records: Sequence[StreamRecord]
    aborted: Aborted | None = None


def from_memory(partition: Partition, offset: int, records: list[StreamRecord]) -> ReadRecords | None:
    """Read at `offset`, up to the last stable offset, and add the aborted transactions in the result. Return
    None if the aborted transactions must be read from objects.
    """
    if not partition.state.aborted.has_stream and _is_stable(partition):
        return ReadRecords(records, ())  # the usual case: no transaction is open, and none was aborted
    listed_from = _listed_from(partition, offset)
    records, end = _below_stable(partition, records)
    aborted = partition.state.aborted.find(listed_from, end)
    return None if aborted is None else ReadRecords(records, aborted)


async def from_objects(partition: Partition, offset: int, bytes_max: int) -> ReadRecords:
    """Read from memory or objects.

    Raises:
        PartitionError: OFFSET_OUT_OF_RANGE.
        S3StreamError: unreadable or too slow.
    """
    listed_from = _listed_from(partition, offset)  # before the read, during which a cleaning may end
    records, end = _below_stable(partition, await partition.read(offset, bytes_max))
    try:
        return ReadRecords(records, await partition.state.aborted.read(listed_from, end))
    except PartitionCorruptError as error:
        raise StreamUnreadableError(f"{partition.identity}: {error}") from error


def _is_stable(partition: Partition) -> bool:
    """Return whether no transaction holds back the last stable offset."""
    return partition.producers.transactions.first_unstable == ALL_STABLE


def _listed_from(partition: Partition, offset: int) -> int:
    """Return the first offset whose aborted transactions must be listed.

    Below `cleaned_to`, the cleaner has removed all aborted records, and maybe their markers. If a listed
    transaction has no marker, the reader would skip the producer's next transaction too.
    """
    return max(offset, partition.log.log_meta.cleaned_to)


def _below_stable(partition: Partition, records: list[StreamRecord]) -> tuple[list[StreamRecord], int]:
    """Return the records below the last stable offset, and their end."""
    stable = partition.last_stable_offset
    last = len(records)
    while last:
        batch = BatchView(memoryview(records[last - 1].payload))
        if batch.base_offset < stable:
            return records if last == len(records) else records[:last], batch.next_offset
        last -= 1
    return [], 0
