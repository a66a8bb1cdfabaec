"""Readers under snapshot leases: each locates stream data in an image and reads it from the store repeatedly.

While a lease is live, every object of its image must exist, even if it is compacted, trimmed, deleted or
collected. Clocks drift, so a reader that does not find an object checks with the controllers whether the
lease is over. Every read of an offset must return the same bytes, from whichever object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from ponor.common.v1 import error_pb2
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image.read_index import Piece, find_pieces
from ponor_metadata.nouns.streams import STREAMS
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ObjectId, StreamId
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_simulation.object_store import SimObjectStore
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import decode_block
from s3stream.objects.keys import object_key
from s3stream.objects.reader import open_object

from ponor_cluster_simulation.invariants.registry import Checks

LEASE_MS: Final = (500, 2_000, 6_000)
ASKED_S_MAX: Final = 3.0
STREAMS_MAX: Final = 3
PIECES_MAX: Final = 100_000
READ_TRIES: Final = 12
"""Attempts after damaged answers; up to a fifth of all answers are damaged."""


class BrokenOffError(Exception):
    """The store fails, so the read proves nothing."""


@dataclass(slots=True)
class StreamHistory:
    """All records that cold readers of a run have read.

    Attributes:
        seen: (stream, first offset of a record) to its number of offsets and its digest.
        reads: compared records.
        looks: streams that were read completely.
        late: reads that failed because the lease was over.
        closing: leases whose readers requested their end.
    """

    seen: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    reads: int = 0
    looks: int = 0
    late: int = 0
    closing: set[int] = field(default_factory=set)


class ColdReader:
    """One reader. Its process never crashes; it leaves every fourth lease open."""

    def __init__(
        self,
        name: str,
        history: StreamHistory,
        store: SimObjectStore,
        addresses: Sequence[str],
        checks: Checks,
    ) -> None:
        self.name = name
        self._history = history
        self._store = store
        self._addresses = addresses
        self._checks = checks
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Read until stopped."""
        client = ClusterClient(runtime.network, runtime.clock, self._addresses)
        subscription = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=self._addresses,
        )
        async with asyncio.TaskGroup() as group:
            following = group.create_task(subscription.run())
            while not self.stop:
                try:
                    await self._read_one(runtime, client, subscription)
                except (NoControllerError, MetadataLagError, BrokenOffError):
                    pass
                except OperationError as refused:
                    self._require_expired(refused)
                await runtime.clock.sleep(runtime.randomness.uniform(0.1, 1.0))
            await subscription.close()
            await following
        self.is_finished = True

    async def _read_one(
        self, runtime: Runtime, client: ClusterClient, subscription: SubscriptionClient
    ) -> None:
        """Open a lease, read the streams as its image locates them, and read them again later."""
        below = runtime.randomness.below
        ttl_ms = LEASE_MS[below(len(LEASE_MS))]
        lease = await client.open_snapshot(self.name, ttl_ms, timeout_s=ASKED_S_MAX)
        await subscription.wait_for(lease.index, int(ASKED_S_MAX * 1000))
        places = self._places(subscription, below(1 << 16))
        for _ in range(1 + below(3)):
            try:
                for stream_id, start, pieces in places:
                    await self._read_stream(stream_id, start, pieces)
            except ObjectNotFoundError as gone:
                await self._excuse(client, lease.lease_id, ttl_ms, gone)
                return
            await runtime.clock.sleep(runtime.randomness.uniform(0.0, 1.5))
            await client.renew_snapshot(lease.lease_id, ttl_ms, timeout_s=ASKED_S_MAX)
        if below(4):
            self._history.closing.add(lease.lease_id)
            await client.close_snapshot(lease.lease_id, timeout_s=ASKED_S_MAX)

    def _places(self, subscription: SubscriptionClient, lot: int) -> list[tuple[StreamId, int, list[Piece]]]:
        """Select some streams and locate [start, end) of each in the image."""
        image = subscription.image
        rows = [row for row in image[STREAMS] if row.end_offset > row.start_offset]
        first = lot % max(len(rows), 1)
        places = []
        for row in [*rows[first:], *rows[:first]][:STREAMS_MAX]:
            found = find_pieces(image, row.stream_id, row.start_offset, row.end_offset, limit=PIECES_MAX)
            end = found[-1].end_offset if found else row.start_offset
            self._checks.require(
                17,
                end == row.end_offset,
                f"stream {row.stream_id}: its pieces end at {end}, but the stream ends at {row.end_offset}",
            )
            places.append((row.stream_id, row.start_offset, found))
        return places

    async def _excuse(self, client: ClusterClient, lease_id: int, ttl_ms: int, gone: Exception) -> None:
        """Require that the lease is over, because an object is missing."""
        try:
            await client.renew_snapshot(lease_id, ttl_ms, timeout_s=ASKED_S_MAX)
        except OperationError as refused:
            self._require_expired(refused)
            self._history.late += 1
            return
        self._checks.require(
            36, False, f"{self.name} did not find an object although its lease {lease_id} is valid: {gone}"
        )

    def _require_expired(self, refused: OperationError) -> None:
        """Require that a refusal states that the lease is over."""
        is_over = refused.code == error_pb2.ERROR_CODE_SNAPSHOT_EXPIRED
        self._checks.require(
            36,
            is_over,
            f"the renewal of the lease of {self.name} failed, but not because it is over: {refused}",
        )

    async def _read_stream(self, stream_id: StreamId, start: int, pieces: Sequence[Piece]) -> None:
        at = start
        for piece in pieces:
            at = await self._read_piece(stream_id, at, piece)
        self._history.looks += 1

    async def _read_piece(self, stream_id: StreamId, at: int, piece: Piece) -> int:
        """Read every record of a piece. Return the offset after it."""
        key = object_key(piece.namespace, ObjectId(piece.object_id))
        for _ in range(READ_TRIES):
            cut_short = self._store.bucket.short_reads
            try:
                records = await self._records(key, stream_id, piece)
            except ObjectCorruptError as damage:
                whole = self._store.bucket.short_reads == cut_short
                self._checks.require(
                    26, not whole, f"{self.name} read {key} without a short read, but it is damaged: {damage}"
                )
                continue
            except ObjectNotFoundError:
                raise
            except ObjectStoreError as error:
                raise BrokenOffError from error
            for base_offset, count, digest in records:
                self._remember(stream_id, base_offset, count, digest)
                follows = (
                    base_offset <= at < base_offset + count if at == piece.start_offset else base_offset == at
                )
                self._checks.require(
                    36,
                    follows,
                    f"stream {stream_id}: {key} has a record at offset {base_offset}, but offset {at}"
                    " was expected",
                )
                at = base_offset + count
            self._checks.require(
                36,
                at >= piece.end_offset,
                f"stream {stream_id}: the records of {key} end at {at}, before the end of {piece}",
            )
            return at
        raise BrokenOffError

    async def _records(self, key: str, stream_id: StreamId, piece: Piece) -> list[tuple[int, int, int]]:
        opened = await open_object(self._store, key, piece.size_bytes)
        found: list[tuple[int, int, int]] = []
        for entry in opened.index.blocks_of(stream_id, piece.start_offset, piece.end_offset):
            data = await self._store.get(key, entry.position, entry.size_bytes)
            block = decode_block(key, entry, data)
            found.extend(
                (record.base_offset, record.count, crc32(record.payload))
                for record in block.records_from(piece.start_offset)
                if record.base_offset < piece.end_offset
            )
        return found

    def _remember(self, stream_id: StreamId, base_offset: int, count: int, digest: int) -> None:
        known = self._history.seen.setdefault((int(stream_id), base_offset), (count, digest))
        self._checks.require(
            26,
            known == (count, digest),
            f"stream {stream_id}, offset {base_offset}: count and digest changed from {known} to"
            f" {(count, digest)}",
        )
        self._history.reads += 1
