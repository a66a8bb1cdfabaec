"""Metadata: brokers, topics and leaders, and automatic creation of topics.

The answer comes from the image. Encoded answers are cached until a relevant change of the image: in a
reconnect storm, all clients send the same request, and get the same encoded answer. An answer with many
partitions is built in steps. The replication factor is nominal: replicas = ISR = the leader
(docs/compatibility.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ponor_kafka.codec import decode_as, encode_steps
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import RequestHeader
from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ponor_metadata.nouns.topics import NO_LEADER, PartitionRow, TopicRow
from ponor_runtime.disk import Buffer
from ponor_runtime.turns import Steps, Turns

from ponor_broker.handlers.authorization import (
    CLUSTER_OPERATIONS,
    OPERATIONS_UNKNOWN,
    TOPIC_OPERATIONS,
)
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.announcements import Announcements
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topics import (
    MAIN_LISTENER,
    Broker,
    Topics,
    is_valid_name,
    shown_replicas,
)
from ponor_broker.requests.api_handler import WhenFenced
from ponor_broker.requests.connection import Response
from ponor_broker.requests.dispatch import Reply

LOG: Final = logging.getLogger("ponor.broker.metadata")
CACHED_ANSWERS_MAX: Final = 256
KEPT_BYTES_MAX: Final = 16 << 20
CREATIONS_MAX: Final = 256
AUTO_CREATE_FLAG_MIN: Final = 4
"""Older versions have no flag; they always allow the creation."""
IDS_MIN: Final = 12
"""Versions 10 and 11 have a field for topic ids, which clients must not use (KAFKA-12728)."""

PARTITIONS_PER_STEP: Final = 250

Spawn = Callable[[Any, str], object]
_Key: TypeAlias = tuple[str, int, bytes]
"""Listener, version and body of a request."""


class MetadataHandler:
    """Fulfils `dispatch.RawHandler`. `invalidate` must be called when topics, partitions or nodes
    change in the image.
    """

    version_min = 0
    version_max = 13
    when_fenced = WhenFenced.CLOSES

    def __init__(
        self,
        topics: Topics,
        admin: TopicAdmin,
        announcements: Announcements,
        spawn: Spawn,
        *,
        node_id: int,
        auto_create: bool,
        partitions_of_new: Callable[[str], int],
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._topics = topics
        self._admin = admin
        self._announcements = announcements
        self._spawn = spawn
        self._node_id = node_id
        self._auto_create = auto_create
        self._partitions_of_new = partitions_of_new
        self._creating: dict[str, None] = {}
        self._turns = Turns()
        self._long: set[_Key] = set()
        """Requests whose answers take several event-loop turns. Equal requests wait for them."""
        self._changes = 0
        self._answers: dict[_Key, list[Buffer]] = {}
        self._answers_bytes = 0
        self._kept_bytes_max = kept_bytes_max

    def invalidate(self) -> None:
        """Drop the cached answers."""
        self._changes += 1
        self._forget()

    def _forget(self) -> None:
        self._answers.clear()
        self._answers_bytes = 0

    def start(
        self, frame: bytearray, header: RequestHeader, reply: Reply
    ) -> Response | asyncio.Future[Response]:
        """Answer from the cache, or build the answer; a short one immediately, a long one in a task.

        Raises:
            KafkaWireError: malformed.
        """
        version = header.api_version
        key = (reply.connection.listener, version, bytes(memoryview(frame)[header.body_position :]))
        kept = self._answers.get(key)
        if kept is not None:
            return reply(kept)
        request, _ = decode_as(MetadataRequest, version, frame, header.body_position)
        steps = self._answer(request, key)
        if key not in self._long:
            try:
                next(steps)
            except StopIteration as done:
                return reply(done.value)
            self._long.add(key)
        return asyncio.get_running_loop().create_task(
            self._answer_in_turns(steps, key, reply), name="METADATA"
        )

    async def _answer_in_turns(self, steps: Steps[list[Buffer]], key: _Key, reply: Reply) -> Response:
        try:
            return reply(await self._turns.run(steps))
        finally:
            self._long.discard(key)

    def _answer(self, request: MetadataRequest, key: _Key) -> Steps[list[Buffer]]:
        kept = self._answers.get(key)
        if kept is not None:
            return kept  # another request built it while this one waited
        changes, (listener, version, _) = self._changes, key
        response = yield from self.describe(request, version, listener)
        # One buffer, because thousands of small ones would have to be counted and joined for every response.
        answer: list[Buffer] = [b"".join((yield from encode_steps(response, version)))]
        if changes == self._changes and all(topic.error_code == ErrorCode.NONE for topic in response.topics):
            self._keep(key, answer)
        return answer

    def _keep(self, key: _Key, answer: list[Buffer]) -> None:
        size_bytes = len(key[2]) + sum(map(len, answer))
        if (
            len(self._answers) >= CACHED_ANSWERS_MAX
            or self._answers_bytes + size_bytes > self._kept_bytes_max
        ):
            self._forget()
        self._answers[key] = answer
        self._answers_bytes += size_bytes

    def describe(
        self, request: MetadataRequest, version: int, listener: str = MAIN_LISTENER
    ) -> Steps[MetadataResponse]:
        """Describe all topics for a null list (an empty one in version 0), otherwise the requested ones.
        The addresses are those of the client's listener.

        The image may change between two steps. Brokers are looked up once, so that the list of brokers
        contains every named leader.
        """
        brokers = {broker.node_id: broker for broker in self._topics.brokers(listener)}
        pace = _Pace()
        topics: list[MetadataResponseTopic] = []
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            for row in list(self._topics.all()):
                if self._topics.by_id(row.topic_id) is not None:
                    described = yield from self._describe(row, request, brokers, pace)
                    topics.append(described)
            return self._respond(request, topics, brokers)
        if version < IDS_MIN and any(topic.topic_id != ZERO_UUID for topic in wanted):
            return _refused(wanted, ErrorCode.INVALID_REQUEST)
        may_create = self._auto_create and (
            request.allow_auto_topic_creation or version < AUTO_CREATE_FLAG_MIN
        )
        for topic in {(topic.name, topic.topic_id): topic for topic in wanted}.values():
            found = self._find(topic, may_create=may_create)
            if isinstance(found, TopicRow):
                topics.append((yield from self._describe(found, request, brokers, pace)))
            else:
                topics.append(found)
                if pace.is_due(1):
                    yield
        return self._respond(request, topics, brokers)

    def _respond(
        self,
        request: MetadataRequest,
        topics: Sequence[MetadataResponseTopic],
        brokers: Mapping[int, Broker],
    ) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(*broker) for broker in brokers.values()],
            cluster_id=self._topics.cluster_id,
            controller_id=self._node_id,
            topics=topics,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_UNKNOWN
            ),
        )

    def _find(self, wanted: MetadataRequestTopic, *, may_create: bool) -> TopicRow | MetadataResponseTopic:
        if wanted.topic_id != ZERO_UUID:
            row = self._topics.by_id(wanted.topic_id)
            if row is None:
                return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, topic_id=wanted.topic_id, name=None)
            return row
        name = wanted.name
        if name is None or not is_valid_name(name):
            return MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name=name or "")
        row = self._topics.by_name(name)
        if row is not None:
            return row
        if not may_create:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        self._create(name)
        # As in Kafka while a topic is being created: every client retries until the answer contains the
        # topic.
        return MetadataResponseTopic(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, is_internal=name in INTERNAL_TOPICS
        )

    def _create(self, name: str) -> None:
        if name not in self._creating and len(self._creating) < CREATIONS_MAX:
            self._creating[name] = None
            self._spawn(self._create_in_background(name), f"create topic {name}")

    async def _create_in_background(self, name: str) -> None:
        try:
            await self._admin.ensure(name, partitions=self._partitions_of_new(name))
        except PartitionError as error:
            LOG.warning("automatic creation of topic %r failed: %s", name, error)
        finally:
            self._creating.pop(name, None)

    def _describe(
        self, row: TopicRow, request: MetadataRequest, brokers: Mapping[int, Broker], pace: _Pace
    ) -> Steps[MetadataResponseTopic]:
        rows = list(self._topics.partitions(row.topic_id))
        is_announced = self._announcements.is_complete(row.topic_id, rows)
        partitions: list[MetadataResponsePartition] = []
        for first in range(0, len(rows), PARTITIONS_PER_STEP):
            some = rows[first : first + PARTITIONS_PER_STEP]
            for partition in some:
                has_leader = partition.leader_id in brokers and (
                    is_announced or self._topics.is_announced(partition)
                )
                partitions.append(_describe_partition(partition, has_leader=has_leader))
            if pace.is_due(len(some)):
                yield
        return MetadataResponseTopic(
            name=row.name,
            topic_id=row.topic_id,
            is_internal=row.name in INTERNAL_TOPICS,
            partitions=partitions,
            topic_authorized_operations=(
                TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_UNKNOWN
            ),
        )


class _Pace:
    """Count rows; `is_due` returns True when a step has processed enough of them."""

    def __init__(self) -> None:
        self._rows = 0

    def is_due(self, rows: int) -> bool:
        self._rows += rows
        if self._rows < PARTITIONS_PER_STEP:
            return False
        self._rows = 0
        return True


def _describe_partition(row: PartitionRow, *, has_leader: bool) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        row.partition,
        row.leader_id if has_leader else NO_LEADER,
        row.leader_epoch,
        replica_nodes=shown_replicas(row),
        isr_nodes=shown_replicas(row),
        offline_replicas=() if has_leader else shown_replicas(row),
    )


def _refused(wanted: Sequence[MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    """Answer an invalid request with an error for every topic."""
    return MetadataResponse(
        brokers=(),
        cluster_id=None,
        topics=[
            MetadataResponseTopic(code, name=topic.name or "", topic_id=topic.topic_id) for topic in wanted
        ],
    )
