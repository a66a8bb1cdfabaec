"""The subscription: how a process follows what was committed.

What lives here: one connection to any controller, made anew whenever it ends, that keeps an image current: resumed by index and digest, or
started over from a snapshot. The image is never ahead of what was verified: a frame's digest is checked before its batches are applied.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from crc32c import crc32c
from google.protobuf.message import DecodeError
from ponor.controller.v1.subscription_service_pb2 import (
    Batches,
    Progress,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SubscribeAck,
    SubscribeRequest,
    SubscribeResponse,
    SubscribeStart,
)
from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_rpc.errors import RETRY_SAME_OPERATION, OperationError
from ponor_rpc.methods import SUBSCRIBE
from ponor_runtime.clock import Clock
from ponor_runtime.network import Connection, ConnectionClosedError, Network
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_metadata.backoff import ReconnectBackoff
from ponor_metadata.digest import EMPTY_DIGEST, running_digest
from ponor_metadata.errors import MetadataLagError, ProtocolError
from ponor_metadata.image import MetadataImage
from ponor_metadata.snapshot import SnapshotCorruptError, SnapshotReader

BatchListener = Callable[[RecordBatch], None]
ImageListener = Callable[[MetadataImage], None]


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """Bounds of a subscription. `slice_ms_max`: longest hold of the loop while much is applied."""

    slice_ms_max: int = 10
    silence_ms_max: int = 5_000
    ack_bytes_max: int = 1024 * 1024
    ack_interval_ms: int = 5_000
    snapshot_bytes_max: int = 1024 * 1024 * 1024
    reconnect_backoff_ms_min: int = 50
    reconnect_backoff_ms_max: int = 2_000


class SubscriptionClient:
    """Keeps `image` current. The owner runs `run()` as a task.

    Attributes:
        listeners: called with each batch right after it was applied to `image`, in order.
        image_listeners: called with the new image after a snapshot replaced `image` (its batches were not announced one by one).
    """

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        addresses: Sequence[str],
        cluster_id: str = "",
        settings: SubscriptionSettings | None = None,
    ) -> None:
        """Build it; nothing is sent before `run`."""
        assert addresses, "a subscription needs the address of at least one controller"
        self._network = network
        self._clock = clock
        self._addresses = tuple(addresses)
        self._cluster_id = cluster_id
        self._settings = settings or SubscriptionSettings()
        self._backoff = ReconnectBackoff(
            randomness,
            ms_min=self._settings.reconnect_backoff_ms_min,
            ms_max=self._settings.reconnect_backoff_ms_max,
        )
        self._reconnects = telemetry.counter("ponor_subscription_reconnects_total")
        self._snapshots = telemetry.counter("ponor_subscription_snapshots_total")
        self._mismatches = telemetry.counter("ponor_subscription_digest_mismatches_total")
        telemetry.gauge("ponor_subscription_applied_index", lambda: self._image.index)
        self._image = MetadataImage()
        # After a snapshot: the image that will replace the present one as soon as it is not behind it.
        self._candidate: MetadataImage | None = None
        self._start_over = False
        self._snapshot: _SnapshotInTransit | None = None
        self._connection: Connection | None = None
        self._unacked_bytes = 0
        self._acked_at_ns = 0
        self._current_at_ns: int | None = None
        self._slice_began_ns = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiters_made = 0
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.listeners: list[BatchListener] = []
        self.image_listeners: list[ImageListener] = []

    @property
    def image(self) -> MetadataImage:
        """Committed metadata, as of the newest index that arrived and was verified. Another object after a snapshot."""
        return self._image

    @property
    def staleness_ms(self) -> int | None:
        """How long ago the image was known to show all that was committed; None: never yet."""
        if self._current_at_ns is None:
            return None
        return (self._clock.monotonic_ns() - self._current_at_ns) // 1_000_000

    async def wait_for(self, index: int, deadline_ms: int | None = None) -> None:
        """Wait until the image shows everything up to `index`.

        Raises:
            MetadataLagError: it did not within `deadline_ms`, or the subscription was closed.
        """
        if self._image.index >= index:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters_made += 1
        heapq.heappush(self._waiters, (index, self._waiters_made, reached))
        try:
            async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                await reached
        except TimeoutError:
            raise MetadataLagError(
                f"the image is at {self._image.index} and did not reach {index} within {deadline_ms} ms; "
                "is a controller reachable?"
            ) from None

    async def run(self) -> None:
        """Follow the controllers until `close`.

        Raises:
            OperationError: no controller will ever accept this subscriber (another cluster, say).
            UnknownRecordError: this build is older than the log.
        """
        assert self._running is None, "the subscription runs already"
        self._running = asyncio.current_task()
        failures = 0
        try:
            while not self._closing.is_set():
                try:
                    await self._follow(self._addresses[failures % len(self._addresses)])
                except (
                    ConnectionClosedError,
                    ProtocolError,
                    DecodeError,
                    SnapshotCorruptError,
                    TimeoutError,
                ):
                    failures += 1
                    self._reconnects.add()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.next_seconds()):
                        await self._closing.wait()
        finally:
            self._fail_waiters()

    async def close(self) -> None:
        """Stop following; `image` stays as it is. Idempotent."""
        self._closing.set()
        if self._connection is not None:
            await self._connection.close()
        if self._running is not None and self._running is not asyncio.current_task():
            await asyncio.wait((self._running,))
        self._fail_waiters()

    async def _follow(self, address: str) -> None:
        """One connection, from its start to its end, which is an exception."""
        connection = self._connection = await self._network.connect(address, SUBSCRIBE)
        self._snapshot = None
        try:
            await connection.send(SubscribeRequest(start=self._start()).SerializeToString())
            self._acked_at_ns = self._clock.monotonic_ns()
            self._unacked_bytes = 0
            while True:
                async with asyncio.timeout(self._settings.silence_ms_max / 1000):
                    encoded = await connection.receive()
                self._slice_began_ns = self._clock.monotonic_ns()
                await self._take(SubscribeResponse.FromString(encoded))
                self._backoff.reset()
                await self._acknowledge(connection, len(encoded))
        finally:
            self._connection = None
            await connection.close()

    def _start(self) -> SubscribeStart:
        known = self._candidate or self._image
        if self._start_over:
            return SubscribeStart(cluster_id=self._cluster_id, resume_index=0, resume_digest=EMPTY_DIGEST)
        return SubscribeStart(
            cluster_id=self._cluster_id, resume_index=known.index, resume_digest=known.digest
        )

    async def _take(self, frame: SubscribeResponse) -> None:
        match frame.WhichOneof("frame"):
            case "snapshot_begin":
                self._begin_snapshot(frame.snapshot_begin)
            case "snapshot_chunk":
                self._add_chunk(frame.snapshot_chunk)
            case "snapshot_end":
                await self._end_snapshot(frame.snapshot_end)
            case "batches":
                await self._apply(frame.batches)
            case "progress":
                self._note_progress(frame.progress)
            case "refused":
                error = OperationError.from_proto(frame.refused)
                if error.code in RETRY_SAME_OPERATION:
                    raise ProtocolError(f"the controller cannot serve a subscription now: {error}")
                raise error
            case other:
                raise ProtocolError(f"a controller sent {other or 'an unknown frame'}")

    def _begin_snapshot(self, begin: SnapshotBegin) -> None:
        if begin.size_bytes > self._settings.snapshot_bytes_max:
            raise ProtocolError(f"a snapshot of {begin.size_bytes} bytes: raise snapshot_bytes_max")
        self._snapshot = _SnapshotInTransit(begin.index, begin.size_bytes, bytearray())

    def _add_chunk(self, chunk: SnapshotChunk) -> None:
        if self._snapshot is None or len(self._snapshot.data) + len(chunk.data) > self._snapshot.size_bytes:
            raise ProtocolError("a snapshot chunk that no SnapshotBegin announced")
        if crc32c(chunk.data) != chunk.crc32c:
            raise ProtocolError(f"snapshot {self._snapshot.index}: wrong CRC32C of a chunk")
        self._snapshot.data += chunk.data

    async def _end_snapshot(self, end: SnapshotEnd) -> None:
        transit, self._snapshot = self._snapshot, None
        if transit is None or len(transit.data) != transit.size_bytes:
            raise ProtocolError("a snapshot ended before all of it was there")
        reader = SnapshotReader(bytes(transit.data))
        while reader.read_section():
            await self._give_way()
        if reader.image.index != transit.index or reader.image.digest != end.digest:
            raise ProtocolError(f"snapshot {transit.index}: index or digest is not the announced one")
        self._snapshots.add()
        self._start_over = False
        self._candidate = reader.image
        self._publish_candidate()

    async def _apply(self, frame: Batches) -> None:
        image = self._candidate or self._image
        digest = image.digest
        for encoded in frame.batches:
            digest = running_digest(digest, encoded)
        if digest != frame.digest:
            # Ours and the controller's histories differ, or bytes were damaged: nothing of it may show. What readers see stays at the
            # last verified index until a snapshot replaces it.
            self._mismatches.add()
            self._candidate = None
            self._start_over = True
            raise ProtocolError(f"the digest after index {image.index} differs from the controller's")
        for encoded in frame.batches:
            batch = image.apply_committed(encoded)
            if image is self._image:
                self._announce(batch)
            await self._give_way()
        self._publish_candidate()
        self._current_at_ns = self._clock.monotonic_ns()

    def _announce(self, batch: RecordBatch) -> None:
        for listener in tuple(self.listeners):
            listener(batch)
        self._wake_waiters()

    def _publish_candidate(self) -> None:
        """Readers never go back in time: a snapshot that is behind catches up first."""
        if self._candidate is None or self._candidate.index < self._image.index:
            return
        self._image, self._candidate = self._candidate, None
        self._current_at_ns = self._clock.monotonic_ns()
        for listener in tuple(self.image_listeners):
            listener(self._image)
        self._wake_waiters()

    def _note_progress(self, progress: Progress) -> None:
        if self._candidate is None and self._image.index >= progress.commit_index:
            self._current_at_ns = self._clock.monotonic_ns()

    async def _give_way(self) -> None:
        """End this turn of the loop if it lasted too long."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._slice_began_ns >= self._settings.slice_ms_max * 1_000_000:
            await self._clock.sleep(0)
            self._slice_began_ns = self._clock.monotonic_ns()

    async def _acknowledge(self, connection: Connection, frame_bytes: int) -> None:
        self._unacked_bytes += frame_bytes
        now_ns = self._clock.monotonic_ns()
        due = now_ns - self._acked_at_ns >= self._settings.ack_interval_ms * 1_000_000
        if due or self._unacked_bytes >= self._settings.ack_bytes_max:
            known = self._candidate or self._image
            ack = SubscribeRequest(ack=SubscribeAck(applied_index=known.index))
            await connection.send(ack.SerializeToString())
            self._unacked_bytes = 0
            self._acked_at_ns = now_ns

    def _wake_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self._image.index:
            _, _, reached = heapq.heappop(self._waiters)
            if not reached.done():
                reached.set_result(None)

    def _fail_waiters(self) -> None:
        for _, _, reached in self._waiters:
            if not reached.done():
                reached.set_exception(MetadataLagError("the subscription was closed"))
        self._waiters.clear()


@dataclass(slots=True)
class _SnapshotInTransit:
    index: int
    size_bytes: int
    data: bytearray
