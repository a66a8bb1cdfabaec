"""The reading part of a ShareFetch: passes over the partitions of a session until records are acquired.

A pass reads from memory with the reader of Fetch (`fetch_reading`), then acquires. Without enough data, the
request waits for appends, for records that become available again, and for share partitions that load. Data
that is only in objects is read within the bounds of Fetch (`cold_reads`), by one request per share partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import NODE_ENDPOINTS_MIN
from ponor_runtime.disk import Buffer
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import turn

from ponor_broker.handlers.fetch.fetch_parking import ReadBounds, TransitWait
from ponor_broker.handlers.fetch.fetch_reading import FetchPass, FetchReader
from ponor_broker.handlers.fetch.fetch_session import News
from ponor_broker.handlers.fetch.partition_fetch import READ_COMMITTED, READ_UNCOMMITTED, PartitionFetch
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import ANY_EPOCH, Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.share_partitions.fetched_batches import FetchedBatch, fetched_batches
from ponor_broker.share_partitions.led_partition import LedSharePartition
from ponor_broker.share_partitions.led_partitions import LedSharePartitions
from ponor_broker.share_partitions.sessions import ShareSession
from ponor_broker.share_partitions.settings import GroupRules
from ponor_broker.share_partitions.share_partition import AcquiredRange, AcquireLimits

ANSWER_BYTES_MAX: Final = 16 << 20
"""Records of one answer. A larger first batch is sent alone."""
PARTITION_BYTES_MAX: Final = 4 << 20
"""Bytes read from one partition at a time. The records in flight are limited, so more is rarely useful."""
PARTITIONS_PER_TURN: Final = 256
"""Partitions that a pass reads in one turn of the event loop."""
BATCHES_PER_TURN: Final = 1_000
"""Batches of one partition that one answer acquires: about 10 ms."""
COLD_PARTITIONS_MAX: Final = 16
COLD_BESIDE_HOT_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one request asks for."""

    wait_ms: int
    min_bytes: int
    bytes_max: int
    limits: AcquireLimits


class Delivered(NamedTuple):
    """Result for one partition: an error, or records of which `ranges` are acquired."""

    part: PartitionFetch
    records: Sequence[Buffer] = ()
    ranges: Sequence[AcquiredRange] = ()


class Delivery(NamedTuple):
    """Result of a request's reading part."""

    rows: list[Delivered]
    found: FetchPass


class _Pass:
    """One pass: what was read, and for which share partitions."""

    __slots__ = ("found", "shares", "waits_for")

    def __init__(self, bytes_max: int) -> None:
        self.found = FetchPass(bytes_max)
        self.shares: dict[PartitionFetch, LedSharePartition] = {}
        self.waits_for: list[tuple[Partition, LedSharePartition]] = []
        """Every share partition of the session that is led here."""


class ShareReader:
    """Reads and acquires records for members."""

    def __init__(
        self,
        partitions: PartitionManager,
        shares: LedSharePartitions,
        bounds: ReadBounds,
        telemetry: Telemetry,
    ) -> None:
        self._partitions = partitions
        self._reader = FetchReader(partitions)
        self._shares = shares
        self._cold_reads, self._parking, self._backlog = bounds
        self._acquired = telemetry.counter("ponor_share_records_acquired_total")

    def session_begun(self, session: ShareSession) -> None:
        """Note that a member begins a session."""
        self._shares.session_begun(session.key.group_id)

    async def read(self, session: ShareSession, wanted: Wanted, rules: GroupRules) -> Delivery:
        """Return records for the session's member, at the latest after `wait_ms`."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wanted.wait_ms / 1000
        while True:
            one = await self._pass(session, wanted, rules)
            found = one.found
            left_s = ends_s - loop.time()
            is_over = left_s <= 0 or self._parking.is_full or session.is_closed
            is_enough = found.bytes_found >= max(wanted.min_bytes, 1) or found.is_urgent or bool(found.cold)
            if is_enough or (is_over and found.bytes_found):
                rows = await self._read_and_acquire(session, one, wanted, rules)
                if rows or is_over:
                    return Delivery(rows, found)
                await turn()  # all that was read are gaps, which are skipped now
                continue
            if is_over:
                self._reader.refuse_held(found, version=NODE_ENDPOINTS_MIN)
                return Delivery(_refused(found), found)
            await self._wait(one, rules, wanted.min_bytes - found.bytes_found, left_s)

    def endpoints(self, found: FetchPass, listener: str) -> list[tuple[int, str, int]]:
        """Return the addresses, at the client's listener, of the leaders that the refusals name."""
        return [(one.node_id, one.host, one.port) for one in self._reader.endpoints(found, listener)]

    # Passes

    async def _pass(self, session: ShareSession, wanted: Wanted, rules: GroupRules) -> _Pass:
        one = _Pass(1 if self._backlog.is_full else min(wanted.bytes_max, ANSWER_BYTES_MAX))
        keys = session.rotated()
        share_bytes_max = max(min(one.found.bytes_left // max(len(keys), 1), PARTITION_BYTES_MAX), 1)
        for begin in range(0, len(keys), PARTITIONS_PER_TURN):
            if begin:
                await turn()
            self._read_some(session, one, keys[begin : begin + PARTITIONS_PER_TURN], share_bytes_max, rules)
        return one

    def _read_some(
        self,
        session: ShareSession,
        one: _Pass,
        keys: Sequence[PartitionKey],
        share_bytes_max: int,
        rules: GroupRules,
    ) -> None:
        wanted: list[PartitionFetch] = []
        in_flight_max = self._shares.limited(rules).delivery.in_flight_max
        if session.is_closed:
            return  # its share partitions would be loaded again, and no end of a session would drop them
        for topic_id, index in keys:
            offset = 0
            share = None
            partition = self._partitions.get(topic_id, index)
            if partition is not None and partition.is_serving:
                share = self._shares.open(session.key.group_id, partition)
                if share is None:
                    continue  # no memory for another share partition
                one.waits_for.append((partition, share))
                next_offset = share.fetch_offset(in_flight_max)
                if next_offset is None:
                    continue
                offset = next_offset
            part = PartitionFetch(topic_id, (index, ANY_EPOCH, offset, -1, share_bytes_max))
            if share is not None:
                one.shares[part] = share
            wanted.append(part)
        isolation_level = READ_COMMITTED if rules.is_committed else READ_UNCOMMITTED
        self._reader.read_into(
            one.found, wanted, version=NODE_ENDPOINTS_MIN, isolation_level=isolation_level, whole=False
        )

    async def _read_and_acquire(
        self, session: ShareSession, one: _Pass, wanted: Wanted, rules: GroupRules
    ) -> list[Delivered]:
        try:
            if one.found.cold:
                await self._read_cold(one, rules)
            return await self._acquire(session, one, wanted, rules)
        finally:
            for part in one.found.cold[:COLD_PARTITIONS_MAX]:
                one.shares[part].wake()  # other requests may read on, also if this one was cancelled

    async def _read_cold(self, one: _Pass, rules: GroupRules) -> None:
        """Read partitions whose data is only in objects. Other requests of the group leave them out."""
        found = one.found
        chosen = found.cold[:COLD_PARTITIONS_MAX]
        ms_max = COLD_BESIDE_HOT_MS if found.bytes_found else None
        for part in chosen:
            one.shares[part].is_reading = True
        try:
            outcomes = await asyncio.gather(
                *(
                    self._cold_reads.read(
                        one,
                        one.shares[part].partition,
                        part.fetch_offset,
                        max(min(part.bytes_max, found.bytes_left), 1),
                        ms_max=ms_max,
                        committed=rules.is_committed,
                    )
                    for part in chosen
                )
            )
        finally:
            for part in chosen:
                one.shares[part].is_reading = False
        for part, outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, PartitionError):
                found.refuse(part, outcome)
            elif one.shares[part].partition.is_serving:
                found.add_records(part, *outcome)

    # Acquisition

    async def _acquire(
        self, session: ShareSession, one: _Pass, wanted: Wanted, rules: GroupRules
    ) -> list[Delivered]:
        rows = _refused(one.found)
        left = wanted.limits.records_max
        for part in one.found.parts:
            if left <= 0 or session.is_closed:
                break
            if part.records_bytes:
                limits = wanted.limits._replace(records_max=left)
                row = self._acquire_from(session, part, one.shares[part], limits, rules)
                if row is not None:
                    rows.append(row)
                    left -= sum(last - first + 1 for first, last, _ in row.ranges)
                await turn()
        return rows

    def _acquire_from(
        self,
        session: ShareSession,
        part: PartitionFetch,
        share: LedSharePartition,
        limits: AcquireLimits,
        rules: GroupRules,
    ) -> Delivered | None:
        """Acquire records of one partition; None if all of them were taken meanwhile, or are gaps."""
        seen: list[FetchedBatch] = []

        def noted() -> Iterator[FetchedBatch]:
            batches = fetched_batches(part.records, part.aborted_transactions)
            for batch in islice(batches, BATCHES_PER_TURN):
                seen.append(batch)
                yield batch

        now_ms = self._shares.now_ms
        ranges = share.acquire(
            session.key.member_id,
            part.fetch_offset,
            noted(),
            limits,
            self._shares.limited(rules),
            now_ms,
        )
        if ranges:
            self._shares.locked(share, now_ms + rules.delivery.lock_ms)
        self._shares.changed(share)
        if not ranges:
            return None
        first, last = ranges[0].first_offset, ranges[-1].last_offset
        records = [one.content for one in seen if one.last_offset >= first and one.first_offset <= last]
        share.partition.bytes_out += sum(map(len, records))
        self._acquired.add(sum(one.last_offset - one.first_offset + 1 for one in ranges))
        return Delivered(part, records, ranges)

    # Waiting

    async def _wait(self, one: _Pass, rules: GroupRules, missing_bytes: int, left_s: float) -> None:
        """Return when something changed for a member that waits, or after `left_s`."""
        listen: Callable[[News], Callable[[], None]] = partial(
            _listen, one.waits_for, rules.is_committed, rules.delivery.in_flight_max
        )
        transit = TransitWait()
        if one.found.held:
            if not transit.take_places(self._partitions.parking, [each for _, each in one.found.held]):
                self._reader.refuse_held(one.found, version=NODE_ENDPOINTS_MIN)
            listen = transit.beside(listen)
        for part in one.found.parts:
            part.drop_records()  # a waiting request must not keep batches in memory
        await self._parking.park(
            missing_bytes=max(missing_bytes, 1),
            wait_ms=max(int(left_s * 1000), 1),
            listen=listen,
            finish=lambda answer: answer.set_result(None),
        )


def _refused(found: FetchPass) -> list[Delivered]:
    return [Delivered(part) for part in found.parts if part.error_code != ErrorCode.NONE]


def _listen(
    watched: Sequence[tuple[Partition, LedSharePartition]], committed: bool, in_flight_max: int, news: News
) -> Callable[[], None]:
    """Report appends and changes of share partitions to a waiting request."""

    def appended(partition: Partition, size_bytes: int) -> None:
        news(size_bytes, not partition.is_serving)

    def changed(share: LedSharePartition) -> None:
        if share.is_closed or share.fetch_offset(in_flight_max) is not None:
            news(0, True)

    leaves: list[Callable[[], None]] = []
    for partition, share in watched:
        watcher = partial(changed, share)
        share.watch(watcher)
        leaves.append(partial(share.unwatch, watcher))
        partition.watch(appended, committed=committed)
        leaves.append(partial(partition.unwatch, appended))

    def leave() -> None:
        for stop in leaves:
            stop()

    return leave
