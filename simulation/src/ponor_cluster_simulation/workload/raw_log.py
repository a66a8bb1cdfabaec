"""Reads of whole partitions with all batches and markers, also of internal topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor_broker.groups.consumer.assignment import CurrentAssignment
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    CurrentEntry,
    EpochEntry,
    GroupEpoch,
    MemberEntry,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
)
from ponor_broker.groups.record_codec import Entry as GroupLogEntry
from ponor_broker.groups.record_codec import decode_entry as decode_group_entry
from ponor_broker.groups.records import GroupEntry, GroupRecord
from ponor_broker.transactions.record_codec import decode_entry
from ponor_kafka.control_records import ControlType, read_end_marker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.record_batch import BatchView, split_batches
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.group_logs import Row, RowKind
from ponor_cluster_simulation.histories.transaction_logs import Batch, Marker, State
from ponor_cluster_simulation.workload.connections import Connections, NotSentError
from ponor_cluster_simulation.workload.consumer import RECORD_BYTES_MAX, RETRIABLE
from ponor_cluster_simulation.workload.group_membership import partitions_of
from ponor_cluster_simulation.workload.leaders import Leaders

EARLIEST: Final = -2
BYTES_MAX: Final = 1 << 20
MembershipEntry = GroupEntry | EpochEntry | TargetEpochEntry | MemberEntry | TargetEntry | CurrentEntry
KINDS: Final = {
    GroupEntry: RowKind.CLASSIC,
    EpochEntry: RowKind.EPOCH,
    TargetEpochEntry: RowKind.TARGET_EPOCH,
    MemberEntry: RowKind.MEMBER,
    TargetEntry: RowKind.TARGET,
    CurrentEntry: RowKind.CURRENT,
}


class RawLogs:
    """Reads partitions of one topic; every request is repeated until it is answered."""

    def __init__(self, runtime: Runtime, name: str, topic: str, bootstrap: Sequence[str]) -> None:
        self._runtime = runtime
        self._topic = topic
        self._connections = Connections(name, bootstrap)
        self._leaders = Leaders(name, topic, bootstrap)

    async def read(self, partition: int) -> tuple[int, list[BatchView]]:
        """Return the start of a log and its batches up to the high watermark."""
        while True:
            try:
                await self._leaders.ask(self._runtime)
                found = await self._read(partition)
            except (ConnectionClosedError, NotSentError):
                found = None
            if found is not None:
                return found
            await self._runtime.clock.sleep(self._runtime.randomness.uniform(0.02, 0.1))

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def _read(self, partition: int) -> tuple[int, list[BatchView]] | None:
        leader = self._leaders.leader_of(partition)
        if leader is None:
            return None
        address = self._leaders.addresses[leader]
        start = await self._start(address, partition)
        if start is None:
            return None
        batches: list[BatchView] = []
        position, end = start, start + 1
        while position < end:
            row = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=BYTES_MAX)
            topic = FetchTopic(self._topic, partitions=[row])
            request = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[topic])
            answer = await self._connections.ask(self._runtime, address, request, 11, FetchResponse)
            found = answer.responses[0].partitions[0]
            if found.error_code != ErrorCode.NONE:
                assert found.error_code in RETRIABLE, ErrorCode(found.error_code)
                return None
            end = found.high_watermark
            some = list(split_batches(memoryview(found.records or b"")))  # type: ignore[arg-type]
            if not some:
                return (start, batches) if position == end else None
            batches += some
            position = some[-1].next_offset
        return start, batches

    async def _start(self, address: str, partition: int) -> int | None:
        topic = ListOffsetsTopic(self._topic, [ListOffsetsPartition(partition, timestamp=EARLIEST)])
        request = ListOffsetsRequest(-1, topics=[topic])
        answer = await self._connections.ask(self._runtime, address, request, 5, ListOffsetsResponse)
        row = answer.topics[0].partitions[0]
        return row.offset if row.error_code == ErrorCode.NONE else None


def transactional(batches: Sequence[BatchView]) -> list[Batch | Marker]:
    """Return the transactional batches and markers."""
    found: list[Batch | Marker] = []
    for batch in batches:
        if batch.is_control:
            end = read_end_marker(batch)
            if end is not None:
                is_commit = end.kind is ControlType.COMMIT
                found.append(
                    Marker(
                        batch.base_offset,
                        batch.producer_id,
                        batch.producer_epoch,
                        end.coordinator_epoch,
                        is_commit,
                    )
                )
        elif batch.is_transactional:
            found.append(Batch(batch.base_offset, batch.producer_id, batch.producer_epoch))
    return found


def states(batches: Sequence[BatchView]) -> list[State]:
    """Return the coordinator's records of a partition of `__transaction_state`, without tombstones."""
    found: list[State] = []
    for batch in batches:
        for record in batch.records(RECORD_BYTES_MAX):
            entry = decode_entry(record.key, record.value)
            if entry is not None and entry.value is not None:
                value = entry.value
                found.append(
                    State(
                        entry.key,
                        value.state.label,
                        value.producer_id,
                        value.producer_epoch,
                        value.partitions,
                        value.is_generation_2,
                    )
                )
    return found


def group_rows(batches: Sequence[BatchView], group_id: str) -> list[list[Row]]:
    """Return the records of one group in a partition of `__consumer_offsets` by batch, without offsets."""
    return [
        [
            row
            for record in batch.records(RECORD_BYTES_MAX)
            if (row := _row(decode_group_entry(record.key, record.value), group_id)) is not None
        ]
        for batch in batches
        if not batch.is_control
    ]


def _row(entry: GroupLogEntry | None, group_id: str) -> Row | None:
    """Return a record that concerns members; None for offsets, expressions, and groups of other types."""
    if not isinstance(entry, MembershipEntry) or entry.key.group_id != group_id:
        return None
    kind, member = KINDS[type(entry)], getattr(entry.key, "member_id", "")
    match entry.value:
        case None:
            return Row(kind, member, is_tombstone=True)
        case GroupRecord(generation=generation, members=members):
            shares = {each.member_id: partitions_of(each.assignment) for each in members}
            return Row(kind, epoch=generation, shares=shares)
        case CurrentAssignment(epoch=epoch, assigned=assigned, revoking=revoking):
            held = (*assigned.values(), *revoking.values())
            return Row(kind, member, epoch, frozenset(index for each in held for index in each))
        case GroupEpoch(epoch=epoch) | TargetEpoch(epoch=epoch):
            return Row(kind, epoch=epoch)
        case ConsumerMember():
            return Row(kind, member)
        case target:
            return Row(kind, member, partitions=frozenset().union(*target.values()))
