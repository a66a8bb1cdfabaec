"""The subscription service: committed batches, pushed to whoever asks.

What lives here: one coroutine per subscriber that sends a snapshot where it must, then frames of the retained tail as it grows, then progress
while nothing happens. Nothing uncommitted passes through here, and nothing here writes to the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from crc32c import crc32c
from google.protobuf.message import DecodeError
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor_rpc.errors import OperationError
from ponor_runtime.network import Connection, ConnectionClosedError

from ponor_controller.subscriptions.image_source import EncodedImage, ImageSource
from ponor_controller.subscriptions.retained_tail import RetainedTail

SNAPSHOT_CHUNK_BYTES = 1024 * 1024


@dataclass(slots=True)
class Subscriber:
    """One subscription, and what it was sent."""

    sent_index: int
    more: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False


class SubscriptionService:
    """Serves SubscriptionService.Subscribe."""

    def __init__(
        self,
        tail: RetainedTail,
        images: ImageSource,
        *,
        cluster_id: str,
        cluster_time_ms: Callable[[], int],
        subscribers_max: int,
        progress_interval_ms: int,
    ) -> None:
        self._tail = tail
        self._images = images
        self._cluster_id = cluster_id
        self._cluster_time_ms = cluster_time_ms
        self._subscribers_max = subscribers_max
        self._progress_seconds = progress_interval_ms / 1000
        # A dict, not a set: served in the order of arrival, on every run alike.
        self._subscribers: dict[int, Subscriber] = {}
        self._next_key = 0
        self._wake_scheduled = False

    @property
    def subscriber_count(self) -> int:
        """Open subscriptions."""
        return len(self._subscribers)

    def committed(self) -> None:
        """The tail has grown. Subscribers wake once per turn of the loop, so that batches committed together travel together."""
        if not self._wake_scheduled and self._subscribers:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        for subscriber in self._subscribers.values():
            subscriber.more.set()

    async def handle(self, connection: Connection) -> None:
        """Serve one subscriber until it goes, or falls too far behind."""
        try:
            start = await _receive_start(connection)
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
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"this controller serves cluster {self._cluster_id}, not {start.cluster_id}; check the controller's address",
            )
        if start.resume_index > self._tail.last_index:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"index {start.resume_index} was never committed here (the log ends at {self._tail.last_index}); "
                "the controller's data was replaced, restart this process",
            )
        if len(self._subscribers) >= self._subscribers_max:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"{self._subscribers_max} subscriptions are open; try again later",
            )

    async def _serve(self, connection: Connection, start: wire.SubscribeStart) -> None:
        key = self._next_key
        self._next_key += 1
        subscriber = Subscriber(sent_index=start.resume_index)
        self._subscribers[key] = subscriber
        listening = asyncio.get_running_loop().create_task(
            _receive_acks(connection, subscriber), name=f"subscription-{key}-acks"
        )
        try:
            if not self._can_resume(start):
                image = self._images.at_least(self._tail.begin_index)
                subscriber.sent_index = image.index
                await _send_snapshot(connection, image)
            await self._follow(connection, subscriber)
        finally:
            del self._subscribers[key]
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    def _can_resume(self, start: wire.SubscribeStart) -> bool:
        return start.resume_index > 0 and self._tail.digest_at(start.resume_index) == start.resume_digest

    async def _follow(self, connection: Connection, subscriber: Subscriber) -> None:
        while not subscriber.gone:
            subscriber.more.clear()
            try:
                frame = self._tail.frame_after(subscriber.sent_index)
            except LookupError as error:
                raise OperationError(
                    error_pb2.ERROR_CODE_OVERLOADED,
                    f"the subscriber fell behind: {error}; connect again for a snapshot",
                ) from error
            if frame is not None:
                subscriber.sent_index = frame.last_index
                await connection.send(frame.data)
                continue
            try:
                async with asyncio.timeout(self._progress_seconds):
                    await subscriber.more.wait()
            except TimeoutError:
                await connection.send(self._progress(subscriber))

    def _progress(self, subscriber: Subscriber) -> bytes:
        # What was sent, not what is committed: the two may differ by what was committed in this turn of the loop.
        progress = wire.Progress(commit_index=subscriber.sent_index, cluster_time_ms=self._cluster_time_ms())
        return wire.SubscribeResponse(progress=progress).SerializeToString()


async def _receive_start(connection: Connection) -> wire.SubscribeStart:
    try:
        request = wire.SubscribeRequest.FromString(await connection.receive())
    except DecodeError as error:
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"a frame is not a SubscribeRequest: {error}"
        ) from error
    if request.WhichOneof("frame") != "start":
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST, "the first frame of a subscription must be a start"
        )
    return request.start


async def _refuse(connection: Connection, error: OperationError) -> None:
    try:
        await connection.send(wire.SubscribeResponse(refused=error.to_proto()).SerializeToString())
    except ConnectionClosedError:
        return


async def _receive_acks(connection: Connection, subscriber: Subscriber) -> None:
    """Read until the subscriber goes; anything but an ack ends the subscription."""
    try:
        while True:
            request = wire.SubscribeRequest.FromString(await connection.receive())
            if request.WhichOneof("frame") != "ack":
                break
    except (ConnectionClosedError, DecodeError):
        pass
    subscriber.gone = True
    subscriber.more.set()


async def _send_snapshot(connection: Connection, image: EncodedImage) -> None:
    begin = wire.SnapshotBegin(index=image.index, size_bytes=len(image.data))
    await connection.send(wire.SubscribeResponse(snapshot_begin=begin).SerializeToString())
    for position in range(0, len(image.data), SNAPSHOT_CHUNK_BYTES):
        data = image.data[position : position + SNAPSHOT_CHUNK_BYTES]
        chunk = wire.SnapshotChunk(data=data, crc32c=crc32c(data))
        await connection.send(wire.SubscribeResponse(snapshot_chunk=chunk).SerializeToString())
    end = wire.SnapshotEnd(digest=image.digest)
    await connection.send(wire.SubscribeResponse(snapshot_end=end).SerializeToString())
