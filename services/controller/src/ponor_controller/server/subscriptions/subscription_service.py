"""The subscription service: send committed batches to subscribers.

One coroutine per subscriber sends a snapshot if necessary, then frames of the retained tail, and Progress
frames while nothing changes. Any controller serves subscriptions from its own commit index.
docs/design/sessions-and-subscriptions.md#subscriptions-never-go-back explains why a subscriber never receives
an older state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from crc32c import crc32c
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.observer_clock import ObserverClock
from ponor_runtime.telemetry import Telemetry

from ponor_controller.kernel.leading import Leading
from ponor_controller.server.subscriptions.image_source import EncodedImage, ImageSource
from ponor_controller.server.subscriptions.retained_tail import RetainedTail
from ponor_controller.server.subscriptions.subscriber import Subscriber, receive_start
from ponor_controller.settings import ControllerSettings

T = TypeVar("T")
LOG: Final = logging.getLogger(__name__)
GATHERING_SECONDS_MAX: Final = 0.05
"""Under load with many subscribers: how long at most a batch waits for other batches that share its frame."""


class SubscriptionService:
    """Serves SubscriptionService.Subscribe."""

    def __init__(
        self,
        tail: RetainedTail,
        images: ImageSource,
        leading: Leading,
        *,
        cluster_id: str,
        cluster_time_ms: Callable[[], int],
        settings: ControllerSettings,
        telemetry: Telemetry,
        observed: ObserverClock,
    ) -> None:
        self._tail = tail
        self._images = images
        self._leading = leading
        self._cluster_id = cluster_id
        self._cluster_time_ms = cluster_time_ms
        self._settings = settings
        self._observed = observed
        self._progress_seconds = settings.progress_interval_ms / 1000
        self._divergences = telemetry.counter("ponor_controller_subscriber_divergences_total")
        self._subscribers: dict[int, Subscriber] = {}  # a dict and not a set: served in the order of arrival
        self._next_key = 0
        self._grown = False
        self._waking = False

    @property
    def subscriber_count(self) -> int:
        """Number of open subscriptions."""
        return len(self._subscribers)

    def committed(self) -> None:
        """The tail has grown: wake all subscribers together.

        After a pause they are woken at once. Under load they are woken less often, depending on their number,
        so that batches share frames and a frame is encoded once for all subscribers.
        """
        self._grown = True
        self._images.forget_before(self._tail.begin_index)
        if not self._waking and self._subscribers:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        if not self._grown:
            self._waking = False
            return
        self._grown = False
        for subscriber in self._subscribers.values():
            subscriber.more.set()
        gathering = len(self._subscribers) / self._settings.subscription_frames_per_second_max
        asyncio.get_running_loop().call_later(min(gathering, GATHERING_SECONDS_MAX), self._wake)

    async def handle(self, connection: Connection) -> None:
        """Serve one subscriber until it disconnects or falls too far behind."""
        try:
            try:
                async with self._observed.timeout(self._settings.session_timeout_ms / 1000):
                    start = await receive_start(connection)
            except TimeoutError:
                return  # the caller sent no first frame
            self._check(start)
            await self._serve(connection, start)
        except OperationError as error:
            await _refuse(connection, error)
        except ConnectionClosedError:
            return
        finally:
            await connection.close()

    def _check(self, start: wire.SubscribeStart) -> None:
        if start.cluster_id and start.cluster_id != self._cluster_id:
            # A node that has seen an index followed its own cluster before, so the address belongs to another
            # cluster now. CONTROLLER_BEHIND makes the node try other addresses.
            is_member = bool(start.seen_index)
            raise OperationError(
                error_pb2.ERROR_CODE_CONTROLLER_BEHIND if is_member else error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"this controller serves cluster {self._cluster_id}, not {start.cluster_id}; check the"
                " controller's address",
            )
        if start.incarnation > self._images.incarnation:
            raise OperationError(
                error_pb2.ERROR_CODE_CONTROLLER_BEHIND,
                f"this controller is at incarnation {self._images.incarnation} of the cluster, not"
                f" {start.incarnation}; connect to another controller",
            )
        if len(self._subscribers) >= self._settings.subscribers_max:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"{self._settings.subscribers_max} subscriptions are open; try again later",
            )

    async def _serve(self, connection: Connection, start: wire.SubscribeStart) -> None:
        settings = self._settings
        subscriber = Subscriber(
            connection,
            self._leading,
            window_bytes=settings.subscriber_window_bytes,
            silence_ms_max=settings.session_timeout_ms,
            observed=self._observed,
        )
        key = self._next_key
        self._next_key += 1
        self._subscribers[key] = subscriber
        loop = asyncio.get_running_loop()
        listening = loop.create_task(subscriber.listen(), name=f"subscription-{key}-listen")
        sending = loop.create_task(self._send(subscriber, start), name=f"subscription-{key}-send")
        try:
            await asyncio.wait((listening, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            del self._subscribers[key]
            listening.cancel()
            sending.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)

    async def _send(self, subscriber: Subscriber, start: wire.SubscribeStart) -> None:
        same_history = start.incarnation == self._images.incarnation
        seen_index = max(start.resume_index, start.seen_index) if same_history else 0
        await self._meanwhile(subscriber, self._reach(subscriber, seen_index))
        reason = self._why_no_resumption(start, same_history=same_history)
        if reason is None:
            subscriber.sent_index = start.resume_index
        else:
            encoding = self._images.at_least(max(self._tail.begin_index, seen_index))
            image = await self._meanwhile(subscriber, encoding)
            assert image.index >= seen_index, (
                f"the snapshot is at index {image.index}, but the subscriber saw index {seen_index}"
            )
            await _send_snapshot(subscriber, image, reason)
            subscriber.sent_index = image.index
        await self._follow(subscriber)

    async def _meanwhile(self, subscriber: Subscriber, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; send Progress frames to the subscriber until it is done."""
        working = asyncio.get_running_loop().create_task(work, name="subscription-preparation")
        try:
            while not (await asyncio.wait((working,), timeout=self._progress_seconds))[0]:
                await self._send_progress(subscriber)
            return working.result()
        finally:
            working.cancel()

    async def _reach(self, subscriber: Subscriber, index: int) -> None:
        """Wait until this controller knows as committed the index that the subscriber saw at another
        controller.

        Raises:
            OperationError: CONTROLLER_BEHIND: the wait timed out.
        """
        try:
            async with asyncio.timeout(self._settings.resume_wait_ms_max / 1000):
                while self._tail.last_index < index:
                    subscriber.more.clear()
                    await subscriber.more.wait()
        except TimeoutError:
            raise OperationError(
                error_pb2.ERROR_CODE_CONTROLLER_BEHIND,
                f"index {index} is not committed here (the log ends at {self._tail.last_index}); connect to"
                " another controller, or, "
                "if the controllers' data was replaced by an older copy, restart this process",
            ) from None

    def _why_no_resumption(
        self, start: wire.SubscribeStart, *, same_history: bool
    ) -> wire.SnapshotBegin.Reason.ValueType | None:
        """Why the subscriber needs a snapshot; None if it can resume."""
        if start.resume_index == 0:
            return wire.SnapshotBegin.REASON_ASKED
        digest = self._tail.digest_at(start.resume_index)
        if digest == start.resume_digest:
            return None
        if not same_history:
            return wire.SnapshotBegin.REASON_INCARNATION
        if digest is None:
            return wire.SnapshotBegin.REASON_COMPACTED
        self._divergences.add()
        LOG.error(
            "the image of a subscriber differs from the image of this controller at index %d: digest %s, not"
            " %s; sending a snapshot to the subscriber",
            start.resume_index,
            start.resume_digest.hex(),
            digest.hex(),
        )
        return wire.SnapshotBegin.REASON_DIVERGED

    async def _follow(self, subscriber: Subscriber) -> None:
        while True:
            self._require_fresh()
            subscriber.more.clear()
            if subscriber.probe:
                await self._send_progress(subscriber)
            elif subscriber.answers:
                answer = wire.SubscribeResponse(read_index=subscriber.answers.popleft())
                await subscriber.send(answer.SerializeToString())
            elif not (subscriber.has_room and await self._send_batches(subscriber)):
                try:
                    async with asyncio.timeout(self._progress_seconds):
                        await subscriber.more.wait()
                except TimeoutError:
                    await self._send_progress(subscriber)

    async def _send_batches(self, subscriber: Subscriber) -> bool:
        """Send the next frame of batches. Returns False if there is none."""
        try:
            frame = self._tail.frame_after(subscriber.sent_index)
        except LookupError as error:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"the subscriber fell behind: {error}; connect again for a snapshot",
            ) from error
        if frame is None:
            return False
        assert frame.first_index == subscriber.sent_index + 1 <= frame.last_index, (
            "indices must be contiguous"
        )
        subscriber.sent_index = frame.last_index
        await subscriber.send(frame.data)
        return True

    def _require_fresh(self) -> None:
        """Disconnect subscribers when this controller is partitioned from its peers, so that they follow
        another one.

        Raises:
            OperationError: CONTROLLER_BEHIND.
        """
        age_ms = self._leading.commit_age_ms
        if age_ms > self._settings.session_timeout_ms:
            raise OperationError(
                error_pb2.ERROR_CODE_CONTROLLER_BEHIND,
                f"this controller has heard no leader for {age_ms} ms; connect to another controller",
            )

    async def _send_progress(self, subscriber: Subscriber) -> None:
        progress = wire.Progress(
            commit_index=self._tail.last_index,
            cluster_time_ms=self._cluster_time_ms(),
            digest=self._tail.last_digest,
            staleness_ms=self._leading.commit_age_ms,
            probe=subscriber.newest_probe,
        )
        subscriber.probe = 0
        await subscriber.send(wire.SubscribeResponse(progress=progress).SerializeToString())


async def _refuse(connection: Connection, error: OperationError) -> None:
    try:
        await connection.send(wire.SubscribeResponse(refused=error.to_proto()).SerializeToString())
    except ConnectionClosedError:
        return


async def _send_snapshot(
    subscriber: Subscriber, image: EncodedImage, reason: wire.SnapshotBegin.Reason.ValueType
) -> None:
    begin = wire.SnapshotBegin(
        index=image.index, size_bytes=image.size_bytes, reason=reason, incarnation=image.incarnation
    )
    await subscriber.send(wire.SubscribeResponse(snapshot_begin=begin).SerializeToString())
    for data in image.pieces:
        await subscriber.room()
        chunk = wire.SnapshotChunk(data=data, crc32c=crc32c(data))
        await subscriber.send(wire.SubscribeResponse(snapshot_chunk=chunk).SerializeToString())
    end = wire.SnapshotEnd(digest=image.digest)
    await subscriber.send(wire.SubscribeResponse(snapshot_end=end).SerializeToString())
