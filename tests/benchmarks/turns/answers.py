"""Scenarios of a broker's responses with many rows, from the request's frame to the response's bytes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ponor_broker.__main__ import GC_THRESHOLDS
from ponor_broker.handlers.metadata.describe_topic_partitions import (
    PARTITIONS_MAX,
    describe_topic_partitions,
)
from ponor_broker.requests.api_handler import ApiHandler
from ponor_broker.requests.connection import ClientConnection, ConnectionContext
from ponor_broker.requests.dispatch import Dispatcher, RawHandler
from ponor_broker.requests.request_flow import RequestFlow
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import encode
from ponor_kafka.headers import encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ponor_kafka.messages.metadata import MetadataRequest
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.handlers.test_cluster_answers import metadata_handler
from services.broker.tests.image_kit import ImageKit
from services.broker.tests.serving_kit import Permission
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

TOPICS: Final = 10
PARTITIONS_PER_TOPIC: Final = 1_000
CLIENTS: Final = 20
ROUNDS: Final = 10


class Desk:
    """Clients of a broker with these handlers. Implements `ConnectionOutput`."""

    def __init__(self, handlers: Iterable[ApiHandler], raw: Mapping[ApiKey, RawHandler]) -> None:
        gc.set_threshold(*GC_THRESHOLDS)
        self._clock = SystemClock()
        serving = Permission(self._clock).serving
        self._dispatcher = Dispatcher(
            handlers, raw=raw, serving=serving, clock=self._clock, telemetry=Telemetry()
        )
        self._answers: asyncio.Queue[int] = asyncio.Queue()

    async def ask(self, key: ApiKey, version: int, request: Message, clients: int = 1) -> int:
        """Send one request per client, and wait for all responses. Returns their bytes."""
        frame = encode_request_header(key, version, 1, None) + encode(request, version)
        for _ in range(clients):
            budgets = ByteBudget("in flight", 1 << 30), ByteBudget("waiting", 1 << 30)
            flow = RequestFlow(self._clock, in_flight=budgets[0], waiting=budgets[1])
            connection = ClientConnection(self._dispatcher, self, ConnectionContext("peer:1"), flow)
            connection.frames_received([bytearray(frame)])
        return sum([await self._answers.get() for _ in range(clients)])

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Count a sent response."""
        self._answers.put_nowait(len(b"".join(buffers)))

    def want_reading(self, *, wanted: bool) -> None:
        """There is always room."""
        assert wanted

    def end(self, reason: str | BaseException) -> None:
        """No connection is closed here."""
        raise AssertionError(reason)


@scenario(
    "metadata",
    f"{ROUNDS} changes, then Metadata of {TOPICS * PARTITIONS_PER_TOPIC:,} partitions and a page of"
    f" {PARTITIONS_MAX:,} for {CLIENTS} clients",
)
async def metadata(recorder: TurnRecorder) -> None:
    """Requests of reconnecting clients and of administrators."""
    kit = ImageKit()
    for number in range(TOPICS):
        kit.put_topic(f"t{number}", PARTITIONS_PER_TOPIC)
    handler = metadata_handler(kit)
    desk = Desk(
        [ApiHandler(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, partial(describe_topic_partitions, kit.topics))],
        {ApiKey.METADATA: handler},
    )
    every_topic, page = MetadataRequest(topics=None), DescribeTopicPartitionsRequest((), PARTITIONS_MAX)
    for at in range(1 + ROUNDS):
        if at == 1:
            recorder.start_recording()  # the codecs are created at the first use
        handler.invalidate()
        await desk.ask(ApiKey.METADATA, 13, every_topic, CLIENTS)
        await desk.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, page)
    recorder.stop_recording()
