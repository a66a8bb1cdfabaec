"""A fetch handler over real partitions on memory streams, asked and answered in Kafka's bytes."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ponor_broker.handlers.fetch.cold_reads import ColdReads
from ponor_broker.handlers.fetch.fetch import FetchHandler
from ponor_broker.handlers.fetch.fetch_parking import FetchParking
from ponor_broker.handlers.fetch.fetch_session_cache import FetchSessionCache
from ponor_broker.partitions.handoff.handoff_source import HandoffSource
from ponor_broker.partitions.handoff.handoff_target import HandoffTarget
from ponor_broker.partitions.handoff.move_operations import LeavingPartition, LedPartition, MoveOutcome
from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.handoff.partition_opener import PartitionOpener
from ponor_broker.partitions.handoff.target_release import TargetRelease
from ponor_broker.partitions.handoff.transit_parking import TransitParking
from ponor_broker.partitions.open_partitions import OpenPartitions
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfig, TopicConfigs
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.connection import Response
from ponor_broker.requests.dispatch import Reply
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.settings import BrokerSettings
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.headers import RequestHeader
from ponor_kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.keys import KEYS, KeyRow
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS, MoveCause, MoveRow, PartitionRow, TopicRow
from ponor_partition.segment import DATA
from ponor_runtime.identity import DEFAULT_TENANT, NodeEpoch, NodeId
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.memory_streams import MemoryStream, MemoryStreams
from services.broker.tests.partition_rig import SteppedClock, batch
from services.broker.tests.serving_kit import Permission, PlainReply

NODE = NodeId(7)
OTHER_NODE = NodeId(8)
Key = tuple[str, int]
"""Topic name and partition."""


class SeededRandomness:
    """Random values from a fixed seed."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._random.randbytes(16), version=4)


class SilentController:
    """Records operations on moves. The test puts their effects into the image."""

    def __init__(self) -> None:
        self.left: list[LeavingPartition] = []
        self.cancelled: list[LedPartition] = []

    async def leave(self, leaving: Sequence[LeavingPartition]) -> list[MoveOutcome]:
        self.left += leaving
        return [MoveOutcome(0, "") for _ in leaving]

    async def cancel(self, partitions: Sequence[LedPartition], reason: str) -> list[MoveOutcome]:
        self.cancelled += partitions
        return [MoveOutcome(0, "") for _ in partitions]


def no_topic_id(name: str) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes


@dataclass
class FetchRig:
    """The components of a broker from the fetch handler to memory streams. Tests create and delete topics in
    the image, as a controller does.
    """

    version: int = 16
    slots_max: int = 4
    settings: BrokerSettings = field(default_factory=lambda: BrokerSettings(park_ms_max=10_000))
    """With a long park time, so that slow machines do not end waits early."""
    session_bytes_max: int = 1 << 20
    sessions_bytes_max: int = 1 << 22
    tasks_max: int = 10_000
    image: MetadataImage = field(default_factory=MetadataImage)
    streams: MemoryStreams = field(default_factory=MemoryStreams)
    clock: SteppedClock = field(default_factory=SteppedClock)
    telemetry: Telemetry = field(default_factory=Telemetry)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    controller: SilentController = field(default_factory=SilentController)

    async def __aenter__(self) -> FetchRig:
        self.permission = Permission(self.clock)
        topics = Topics(lambda: self.image)
        self.refused = RefusedSequences(self.clock)
        opener = PartitionOpener(
            self.streams,
            topics,
            self._put_keys,
            self.clock,
            config=TopicConfig(),
            producers_max=100,
            refused=self.refused,
            attend=lambda _: None,
        )
        for node_id in (NODE, OTHER_NODE):
            self.image[NODES].put(
                NodeRow(node_id, NodeEpoch(1), NodeRole.BROKER, b"", f"host{node_id}", 9092, 0, False, 0)
            )
        self.owned = OwnedStreams(self.streams, topics, NODE, attend=lambda _: None)
        self._failed: list[BaseException] = []
        self.tasks = BackgroundTasks(lambda _, error: self._failed.append(error), tasks_max=self.tasks_max)
        self.partitions = self._partitions(topics, opener)
        self.tasks.spawn(self.partitions.run(), "partitions")
        self.backlog = AnswerBacklog(1 << 30)
        settings = replace(
            self.settings,
            fetch_session_slots_max=self.slots_max,
            fetch_session_bytes_max=self.session_bytes_max,
            fetch_sessions_bytes_max=self.sessions_bytes_max,
            cold_reads_in_flight_max=2,
            cold_reads_waiting_max=100,
            cold_read_bytes_max=1 << 20,
            cold_read_bytes_per_s_max=0,
        )
        self.sessions = FetchSessionCache(
            settings,
            clock=self.clock,
            randomness=SeededRandomness(),
            telemetry=self.telemetry,
        )
        self.parking = FetchParking(self.settings.parked_fetches_max, self.telemetry)
        self.handler = FetchHandler(
            self.partitions,
            self.backlog,
            ColdReads(settings, clock=self.clock, telemetry=self.telemetry),
            self.sessions,
            self.parking,
            self.permission.serving,
            self.settings,
        )
        return self

    def _partitions(self, topics: Topics, opener: PartitionOpener) -> PartitionManager:
        parking = TransitParking(
            ms_max=self.settings.park_ms_max,
            bytes_max=self.settings.park_bytes_max,
            telemetry=self.telemetry,
        )
        self.registry = OpenPartitions(topics, TopicConfigs(lambda: self.image, NODE), parking)
        release = TargetRelease(
            self.streams,
            self.controller,
            self.clock,
            open_here=lambda key: topics.streams_open_at(key, NODE),
        )
        target = HandoffTarget(
            opener,
            release,
            topics,
            node_id=NODE,
            clock=self.clock,
            tasks=self.tasks,
            telemetry=self.telemetry,
            on_opened=self.registry.add,
            on_undecided=self.registry.note_stale,
        )
        self.source = HandoffSource(
            self.streams,
            self.controller,
            clock=self.clock,
            tasks=self.tasks,
            telemetry=self.telemetry,
            open_here=lambda key: topics.streams_open_at(key, NODE),
            on_sealed=self.registry.refuses_appends,
            on_kept=self.registry.accepts_appends,
            on_undecided=self.registry.note_stale,
        )
        return PartitionManager(
            topics,
            self.registry,
            target,
            self.source,
            self.refused,
            self.permission.serving,
            node_id=NODE,
            tasks=self.tasks,
        )

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.close()
        assert self._failed == []

    async def _put_keys(self, puts: Sequence[tuple[str, bytes]]) -> list[bytes]:
        for key, value in puts:
            self.image[KEYS].put(KeyRow(key, value))
        return [value for _, value in puts]

    # The cluster

    async def create(self, topic: str, partitions: int = 1, *, leader: NodeId = NODE, epoch: int = 0) -> None:
        """Put a topic into the image; return when its partitions serve."""
        topic_id = uuid.uuid4().bytes if topic in self.topic_ids else no_topic_id(topic)
        self.topic_ids[topic] = topic_id
        self.image[TOPICS].put(TopicRow(topic_id, DEFAULT_TENANT, topic, 1, {}))
        for index in range(partitions):
            self.image[PARTITIONS].put(PartitionRow(topic_id, index, leader, epoch, (leader,)))
        await self.follow()

    async def delete(self, topic: str) -> None:
        """Delete a topic from the image; return when the broker has closed it."""
        topic_id = self.topic_ids[topic]
        for row in [row for row in self.image[PARTITIONS] if row.topic_id == topic_id]:
            self.image[PARTITIONS].delete((topic_id, row.partition))
        self.image[TOPICS].delete(topic_id)
        await self.follow()

    async def move(self, topic: str, index: int, leader: NodeId, epoch: int) -> None:
        """Put another leader, or the same one at a new epoch, into the image."""
        topic_id = self.topic_ids[topic]
        self.image[PARTITIONS].put(PartitionRow(topic_id, index, leader, epoch, (leader,)))
        await self.follow()

    async def begin_move(self, topic: str, index: int = 0, target: NodeId = OTHER_NODE) -> None:
        """Put a move to another broker into the image; return when this broker has completed its part."""
        row = MoveRow(self.topic_ids[topic], index, NODE, target, 0, 10_000, MoveCause.REQUEST, "a story", "")
        self.image[MOVES].put(row)
        await self.follow()

    async def end_move(
        self, topic: str, index: int = 0, *, leader: NodeId = OTHER_NODE, epoch: int = 1
    ) -> None:
        """End the move with an election."""
        self.image[MOVES].delete((self.topic_ids[topic], index))
        await self.move(topic, index, leader, epoch)

    async def follow(self) -> None:
        """Let the broker process the image."""
        self.partitions.image_changed(None)
        for _ in range(400):
            await asyncio.sleep(0)

    def partition(self, topic: str, index: int = 0) -> Partition:
        """An open partition."""
        return self.partitions.find(topic, index)

    async def append(self, topic: str, index: int = 0, records: int = 1) -> None:
        """One batch; returns when it is durable and readable."""
        durable = asyncio.Event()
        self.partition(topic, index).append(batch(records), 0, lambda _: durable.set())
        await durable.wait()

    def data_stream(self, topic: str, index: int = 0) -> MemoryStream:
        """The stream with a partition's batches."""
        stream = self.partition(topic, index).log.streams[DATA]
        assert isinstance(stream, MemoryStream)
        return stream

    # A client

    def start(
        self,
        wanted: Iterable[tuple[Key, int]] = (),
        *,
        session_id: int = 0,
        epoch: int = -1,
        forgotten: Iterable[Key] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        isolation_level: int = 0,
        version: int | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> asyncio.Future[FetchResponse]:
        """Send a fetch of (partition, offset) pairs; the future of its decoded answer."""
        version = self.version if version is None else version
        ids = self.topic_ids if topic_ids is None else topic_ids
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session_id if version >= 7 else 0,
            session_epoch=epoch if version >= 7 else -1,
        )
        for (topic, index), offset in wanted:
            row = FetchPartition(index, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
            if version >= 9:
                row.current_leader_epoch = leader_epoch
            if version >= 12:
                row.last_fetched_epoch = last_fetched_epoch
            name, topic_id = (topic, bytes(16)) if version < 13 else ("", ids.get(topic, bytes(16)))
            request.topics = [*request.topics, FetchTopic(name, topic_id, [row])]
        for topic, index in forgotten:
            name, topic_id = (topic, bytes(16)) if version < 13 else ("", ids.get(topic, bytes(16)))
            request.forgotten_topics_data = [
                *request.forgotten_topics_data,
                ForgottenTopic(name, topic_id, [index]),
            ]
        frame = bytearray(encode(request, version))
        answer = self.handler.start(frame, RequestHeader(1, version, 1, None, 0), cast("Reply", PlainReply()))
        return asyncio.ensure_future(_decoded(answer, version))

    async def fetch(self, wanted: Iterable[tuple[Key, int]] = (), **options: object) -> FetchResponse:
        """`start`, and its answer."""
        return await self.start(wanted, **options)  # type: ignore[arg-type]

    def answers(self, response: FetchResponse) -> dict[Key, PartitionData]:
        """The partitions of an answer, by topic name."""
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        return {
            (topic.topic or names.get(topic.topic_id, "?"), one.partition_index): one
            for topic in response.responses
            for one in topic.partitions
        }


async def _decoded(answer: object, version: int) -> FetchResponse:
    body = await answer if isinstance(answer, Awaitable) else answer
    whole = b"".join(bytes(part) for part in cast("Iterable[bytes]", cast("Response", body)))
    response, end = decode_as(FetchResponse, version, whole)
    assert end == len(whole)
    return response


def base_offsets(data: PartitionData) -> list[int]:
    """Base offsets of the batches of an answer."""
    records = bytes(cast("memoryview", data.records or b""))
    found: list[int] = []
    at = 0
    while at < len(records):
        found.append(int.from_bytes(records[at : at + 8], "big"))
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
    return found
