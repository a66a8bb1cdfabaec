"""The subscription of a process: it follows the committed batches of any controller and keeps an image
current.

The client reconnects whenever the connection ends. It resumes at its incarnation, index and digest, or gets a
snapshot if the controller cannot continue there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from ponor.controller.v1.subscription_service_pb2 import (
    Progress,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotBegin,
    SubscribeAck,
    SubscribeRequest,
    SubscribeResponse,
    SubscribeStart,
)
from ponor_rpc.errors import RETRY_SAME_OPERATION, OperationError
from ponor_rpc.methods import SUBSCRIBE
from ponor_runtime.clock import Clock
from ponor_runtime.network import Connection, ConnectionClosedError, Network
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_metadata.client.controllers import ControllerChoice, KnownControllers, ReconnectBackoff
from ponor_metadata.client.errors import ImageDivergedError, MetadataLagError, ProtocolError
from ponor_metadata.client.followed_image import BatchListener, FollowedImage, ImageListener
from ponor_metadata.client.staleness import Staleness
from ponor_metadata.image.batches import EMPTY_DIGEST
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import SnapshotCorruptError
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.quorum import QUORUM

LOG: Final = logging.getLogger(__name__)
FAILURES: Final = (ConnectionClosedError, ProtocolError, DecodeError, SnapshotCorruptError, TimeoutError)
"""Errors after which the subscription tries the next controller."""
READS_MAX: Final = 32
"""Limit of waiting linearizable reads of one process; a controller accepts 64 from a subscriber."""
READ_RETRY_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """Bounds of a subscription.

    `slice_ms_max`: longest event-loop turn while batches are applied. `silence_ms_max`: longest silence of a
    controller, which sends a frame at least every 500 ms. `stale_ms_max`: if a controller has heard no leader
    for this long, the client tries another controller, if there is one.
    """

    slice_ms_max: int = 10
    silence_ms_max: int = 3_000
    stale_ms_max: int = 3_000
    ack_bytes_max: int = 1024 * 1024
    ack_interval_ms: int = 400
    snapshot_bytes_max: int = 1024 * 1024 * 1024
    reconnect_backoff_ms_min: int = 50
    reconnect_backoff_ms_max: int = 500


class SubscriptionClient:
    """Keeps `image` current. The owner runs `run()` as a task.

    Attributes:
        listeners: called with each batch right after it was applied to `image`, in order.
        image_listeners: called with the new image after a snapshot replaced `image`; no listener gets the
            snapshot's batches.
    """

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        addresses: Sequence[str] | KnownControllers,
        cluster_id: str = "",
        settings: SubscriptionSettings | None = None,
    ) -> None:
        """Create a subscription; it sends nothing before `run`.

        `addresses` are the controllers, HOST:PORT each. The addresses of the quorum's members in the image
        are added.
        """
        self._network = network
        self._clock = clock
        self._known = addresses if isinstance(addresses, KnownControllers) else KnownControllers(addresses)
        # Any controller serves subscriptions. A random first choice distributes them over the controllers.
        self._choice = ControllerChoice(self._known, randomness.below(len(self._known.all)))
        self._cluster_id = cluster_id
        self._settings = settings = settings or SubscriptionSettings()
        self._backoff = ReconnectBackoff(
            randomness, ms_min=settings.reconnect_backoff_ms_min, ms_max=settings.reconnect_backoff_ms_max
        )
        self._reconnects = telemetry.counter("ponor_subscription_reconnects_total")
        self._snapshots = telemetry.counter("ponor_subscription_snapshots_total")
        self._mismatches = telemetry.counter("ponor_subscription_digest_mismatches_total")
        telemetry.gauge("ponor_subscription_applied_index", lambda: self.image.index)
        self._followed = FollowedImage(settings.snapshot_bytes_max, self._give_way)
        self._staleness = Staleness(clock, settings.ack_interval_ms)
        self._start_over = False
        self._connection: Connection | None = None
        self._received_bytes = 0
        self._acked_bytes = 0
        self._acked_at_ns = 0
        self._slice_began_ns = 0
        self._reads: dict[int, asyncio.Future[int | None]] = {}
        self._reads_made = 0
        self._reading = asyncio.Semaphore(READS_MAX)
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._followed.listeners.append(
            lambda batch: self._learn(any(r.HasField("voters_set") for r in batch.records))
        )
        self._followed.image_listeners.append(lambda _: self._learn(changed=True))

    @property
    def image(self) -> MetadataImage:
        """Committed metadata as of the newest verified index. A snapshot replaces the object."""
        return self._followed.image

    @property
    def listeners(self) -> list[BatchListener]:
        """See the class."""
        return self._followed.listeners

    @property
    def image_listeners(self) -> list[ImageListener]:
        """See the class."""
        return self._followed.image_listeners

    @property
    def staleness_ms(self) -> int | None:
        """Time since the image was known to contain all committed batches; None before the first time."""
        return self._staleness.staleness_ms

    async def wait_for(self, index: int, deadline_ms: int | None = None) -> None:
        """Wait until the image contains all batches up to `index`.

        Raises:
            MetadataLagError: `deadline_ms` passed before that, or the subscription was closed.
        """
        await self._followed.wait_for(index, deadline_ms)

    async def wait_current(self, deadline_ms: int | None = None) -> None:
        """Wait until the image contains all batches committed before this call. A read of the image is then
        linearizable.

        Raises:
            MetadataLagError: within `deadline_ms` no majority confirmed a leader, or the image did not reach
                the leader's index.
        """
        try:
            async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                async with self._reading:
                    while (index := await self._read_index()) is None:
                        await self._clock.sleep(READ_RETRY_SECONDS)
                await self.wait_for(index)
        except TimeoutError:
            raise MetadataLagError(
                f"the controllers did not report their commit index within {deadline_ms} ms; is a majority"
                " of them running?"
            ) from None

    async def run(self) -> None:
        """Follow the controllers until `close`.

        Raises:
            OperationError: the controllers refuse this subscriber, for example those of another cluster.
            UnknownRecordError: the log contains a kind of record that this build does not support.
            HistoryReplacedError: a forced recovery discarded batches on which this process may have acted.
        """
        assert self._running is None, "the subscription is already running"
        self._running = asyncio.current_task()
        try:
            while not self._closing.is_set():
                try:
                    await self._follow(self._choice.address())
                except FAILURES as error:
                    self._note_failure(error)
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
        """Run one connection until it fails with an exception."""
        connection = self._connection = await self._network.connect(address, SUBSCRIBE)
        self._followed.connected()
        self._staleness.connected()
        self._received_bytes = self._acked_bytes = 0
        try:
            await connection.send(SubscribeRequest(start=self._start()).SerializeToString())
            await self._acknowledge()
            while True:
                async with asyncio.timeout(self._settings.silence_ms_max / 1000):
                    encoded = await connection.receive()
                self._received_bytes += len(encoded)
                self._slice_began_ns = self._clock.monotonic_ns()
                await self._take(SubscribeResponse.FromString(encoded))
                await self._acknowledge()
        finally:
            self._connection = None
            self._drop_reads()
            await connection.close()

    def _start(self) -> SubscribeStart:
        image = self.image
        cluster = cluster_of(image)
        start = SubscribeStart(
            cluster_id=self._cluster_id if cluster is None else cluster.cluster_id,
            resume_index=image.index,
            resume_digest=image.digest,
            incarnation=self._followed.incarnation,
            seen_index=image.index,
        )
        if self._start_over:
            start.resume_index, start.resume_digest = 0, EMPTY_DIGEST
        return start

    async def _take(self, frame: SubscribeResponse) -> None:
        match frame.WhichOneof("frame"):
            case "snapshot_begin":
                self._begin_snapshot(frame.snapshot_begin)
            case "snapshot_chunk":
                self._followed.add_chunk(frame.snapshot_chunk)
            case "snapshot_end":
                await self._followed.end_snapshot(frame.snapshot_end)
                self._snapshots.add()
                self._start_over = False
                self._served()
            case "batches":
                await self._followed.apply(frame.batches)
                self._served()
            case "progress":
                self._note_progress(frame.progress)
            case "read_index":
                self._take_read_index(frame.read_index)
            case "refused":
                error = OperationError.from_proto(frame.refused)
                if error.code in RETRY_SAME_OPERATION:
                    raise ProtocolError(f"the controller cannot serve a subscription now: {error}")
                raise error
            case other:
                raise ProtocolError(f"a controller sent {other or 'an unknown frame'}")

    def _begin_snapshot(self, begin: SnapshotBegin) -> None:
        self._followed.begin_snapshot(begin)
        if begin.reason == SnapshotBegin.REASON_DIVERGED:
            self._note_divergence(f"a controller has a different digest at index {self.image.index}")

    def _note_progress(self, progress: Progress) -> None:
        self._followed.compare(progress)
        self._staleness.claimed(progress.probe, progress.commit_index, progress.staleness_ms)
        self._staleness.reached(self.image.index)
        if progress.staleness_ms > self._settings.stale_ms_max and self._choice.has_others:
            raise ProtocolError(f"the controller has heard no leader for {progress.staleness_ms} ms")
        self._served()

    def _served(self) -> None:
        self._staleness.reached(self.image.index)
        self._backoff.reset()
        self._choice.served()

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, ImageDivergedError):
            self._start_over = True
            self._note_divergence(str(error))
        if not self._closing.is_set():
            LOG.info(
                "the subscription at %s ended: %s", self._choice.address(), error or type(error).__name__
            )
        self._reconnects.add()
        self._choice.failed()

    def _note_divergence(self, what: str) -> None:
        self._mismatches.add()
        LOG.error(
            "%s: replacing this image by a snapshot; two replicas of the metadata differ, which is a bug or"
            " corruption",
            what,
        )

    def _learn(self, changed: bool) -> None:
        if changed:
            self._known.learn(row.service_address for row in self.image[QUORUM])

    async def _give_way(self) -> None:
        """If this event-loop turn took `slice_ms_max`, send an acknowledgement as a sign of life and
        yield.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._slice_began_ns >= self._settings.slice_ms_max * 1_000_000:
            self._staleness.reached(self.image.index)
            await self._acknowledge()
            await self._clock.sleep(0)
            self._slice_began_ns = self._clock.monotonic_ns()

    async def _acknowledge(self) -> None:
        """Acknowledge received bytes, and send a probe of the commit index, if enough bytes arrived or the
        interval has passed.
        """
        connection = self._connection
        probe = self._staleness.next_probe()
        now_ns = self._clock.monotonic_ns()
        due = now_ns - self._acked_at_ns >= self._settings.ack_interval_ms * 1_000_000
        enough = self._received_bytes - self._acked_bytes >= self._settings.ack_bytes_max
        if connection is None or not (due or enough or probe):
            return
        ack = SubscribeAck(applied_index=self.image.index, received_bytes=self._received_bytes, probe=probe)
        self._acked_bytes = self._received_bytes
        self._acked_at_ns = now_ns
        async with asyncio.timeout(self._settings.silence_ms_max / 1000):
            await connection.send(SubscribeRequest(ack=ack).SerializeToString())

    async def _read_index(self) -> int | None:
        """Request the read index once; None if the controller could not answer."""
        connection = self._connection
        if connection is None:
            return None
        self._reads_made += 1
        context = self._reads_made
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._reads[context] = answer
        try:
            request = SubscribeRequest(read_index=ReadIndexRequest(context=context))
            await connection.send(request.SerializeToString())
            return await answer
        except ConnectionClosedError:
            return None
        finally:
            self._reads.pop(context, None)

    def _take_read_index(self, response: ReadIndexResponse) -> None:
        answer = self._reads.get(response.context)
        if answer is not None and not answer.done():
            answer.set_result(response.index if response.WhichOneof("outcome") == "index" else None)

    def _drop_reads(self) -> None:
        for answer in self._reads.values():
            if not answer.done():
                answer.set_result(None)

    def _fail_waiters(self) -> None:
        self._drop_reads()
        self._followed.fail_waiters()
