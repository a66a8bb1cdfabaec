"""Operations on topics and configs, sent to the controller for clients.

An operation returns when this broker's image shows its effect. Refusals are translated into Kafka's
errors. The controller checks names, counts and configs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ponor.common.v1 import error_pb2
from ponor.controller.v1.session_service_pb2 import (
    AlterBrokerConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Operation,
    OperationResult,
)
from ponor.controller.v1.session_service_pb2 import (
    ConfigChange as WireChange,
)
from ponor_kafka.configs.changes import ChangeKind, ConfigChange
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from ponor_metadata.client.errors import (
    MetadataLagError,
    OperationTimeoutError,
    OperationTooLargeError,
    SessionClosedError,
)
from ponor_rpc.errors import OperationError

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.announcements import Announcements
from ponor_broker.partitions.topics.topics import Topics

DEFAULT_COUNT: Final = -1
IMAGE_WAIT_MS: Final = 5_000
ANNOUNCED_WAIT_MS: Final = 5_000
"""Longest wait for the leaders of new partitions: some brokers may be down, and the topic exists anyway."""
OPERATIONS_MAX: Final = 128
"""Clients' operations that are in flight in the session; the others wait here. The session executes
operations in order, and the operations of uploads and write-ahead logs must not wait for all of them.
"""
INTERNAL_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        OFFSETS_TOPIC: MappingProxyType(
            {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
        ),
        TRANSACTIONS_TOPIC: MappingProxyType(
            {"cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": "104857600"}
        ),
        SHARE_STATE_TOPIC: MappingProxyType(
            {
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "segment.bytes": "104857600",
                "retention.ms": "-1",
            }
        ),
    }
)
"""Configs of internal topics, as Kafka sets them (4.3.1, GroupCoordinatorService.groupMetadataTopicConfigs,
TransactionStateManager.transactionTopicConfigs, ShareCoordinatorService.shareGroupStateTopicConfigs), without
the configs of replication."""

_KAFKA_CODES: Final = {
    error_pb2.ERROR_CODE_INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    error_pb2.ERROR_CODE_TOPIC_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS,
    error_pb2.ERROR_CODE_TOPIC_NOT_FOUND: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    error_pb2.ERROR_CODE_INVALID_TOPIC: ErrorCode.INVALID_TOPIC_EXCEPTION,
    error_pb2.ERROR_CODE_INVALID_PARTITIONS: ErrorCode.INVALID_PARTITIONS,
    error_pb2.ERROR_CODE_INVALID_REPLICATION_FACTOR: ErrorCode.INVALID_REPLICATION_FACTOR,
    error_pb2.ERROR_CODE_INVALID_CONFIG: ErrorCode.INVALID_CONFIG,
}
_CHANGE_KINDS: Final = MappingProxyType(
    {
        ChangeKind.SET: WireChange.KIND_SET,
        ChangeKind.DELETE: WireChange.KIND_DELETE,
        ChangeKind.APPEND: WireChange.KIND_APPEND,
        ChangeKind.SUBTRACT: WireChange.KIND_SUBTRACT,
    }
)


class Session(Protocol):
    """The part of the session client that `TopicAdmin` uses."""

    def submit(self, operation: Operation, *, deadline_ms: int | None = None) -> Awaitable[OperationResult]:
        """Execute an operation; see `ponor_metadata.client.session.SessionClient`."""
        ...


class ImageProgress(Protocol):
    """The part of the subscription client that `TopicAdmin` uses."""

    def wait_for(self, index: int, deadline_ms: int | None = None) -> Awaitable[None]:
        """Wait until the image shows an index; see
        `ponor_metadata.client.subscription.SubscriptionClient`.
        """
        ...


class CreatedTopic(NamedTuple):
    """A created topic, or with `validate_only` one that could be created."""

    topic_id: bytes
    partitions: int
    replication_factor: int


class TopicAdmin:
    """Operations on topics of one tenant. They raise PartitionError with the code for the Kafka client."""

    def __init__(
        self,
        session: Session,
        progress: ImageProgress,
        topics: Topics,
        announcements: Announcements,
        *,
        deadline_ms: int,
    ) -> None:
        self._session = session
        self._progress = progress
        self._topics = topics
        self._announcements = announcements
        self._deadline_ms = deadline_ms
        self._room = asyncio.Semaphore(OPERATIONS_MAX)
        self._ensuring: dict[str, asyncio.Future[None]] = {}

    async def create(
        self,
        name: str,
        *,
        partitions: int = DEFAULT_COUNT,
        replication_factor: int = DEFAULT_COUNT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        deadline_ms: int | None = None,
    ) -> CreatedTopic:
        """Create a topic; return when its leaders are announced, at the latest after ANNOUNCED_WAIT_MS."""
        body = CreateTopic(
            tenant_id=self._topics.tenant_id,
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(configs or {}),
            validate_only=validate_only,
        )
        result = await self.submit(Operation(create_topic=body), deadline_ms)
        held = result.topic_held
        if not validate_only:
            await self._announced(held.topic_id, deadline_ms)
        return CreatedTopic(held.topic_id, held.partitions, held.replication_factor)

    async def delete(self, topic_id: bytes, *, deadline_ms: int | None = None) -> None:
        """Delete a topic; return when this broker's image shows it."""
        await self.submit(Operation(delete_topic=DeleteTopic(topic_id=topic_id)), deadline_ms)

    async def create_partitions(
        self, topic_id: bytes, count: int, *, validate_only: bool = False, deadline_ms: int | None = None
    ) -> None:
        """Raise a topic's number of partitions to `count`; return under the same conditions as `create`."""
        body = CreatePartitions(topic_id=topic_id, count=count, validate_only=validate_only)
        await self.submit(Operation(create_partitions=body), deadline_ms)
        if not validate_only:
            await self._announced(topic_id, deadline_ms)

    async def _announced(self, topic_id: bytes, deadline_ms: int | None) -> None:
        deadline_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        await self._announcements.wait(topic_id, min(deadline_ms, ANNOUNCED_WAIT_MS))

    async def alter_topic_configs(
        self,
        topic_id: bytes,
        changes: Iterable[ConfigChange],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change a topic's configs, all or none; return when this broker's image shows the change."""
        body = AlterTopicConfigs(
            topic_id=topic_id, changes=_wire_changes(changes), replace=replace, validate_only=validate_only
        )
        await self.submit(Operation(alter_topic_configs=body), None)

    async def alter_broker_configs(
        self,
        node_id: int,
        changes: Iterable[ConfigChange],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """As `alter_topic_configs`, for dynamic configs of a broker, or of all brokers
        (`ponor_metadata.nouns.nodes.ALL_BROKERS`).
        """
        body = AlterBrokerConfigs(
            node_id=node_id, changes=_wire_changes(changes), replace=replace, validate_only=validate_only
        )
        await self.submit(Operation(alter_broker_configs=body), None)

    async def alter_group_configs(
        self,
        group_id: str,
        changes: Iterable[ConfigChange],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """As `alter_topic_configs`, for dynamic configs of a group, which need not exist."""
        body = AlterGroupConfigs(
            tenant_id=self._topics.tenant_id,
            group_id=group_id,
            changes=_wire_changes(changes),
            replace=replace,
            validate_only=validate_only,
        )
        await self.submit(Operation(alter_group_configs=body), None)

    async def ensure(self, name: str, *, partitions: int = DEFAULT_COUNT) -> None:
        """Return when the topic exists. Concurrent callers share one operation."""
        if self._topics.by_name(name) is not None:
            return
        running = self._ensuring.get(name)
        if running is None:
            running = asyncio.ensure_future(self._ensure(name, partitions))
            self._ensuring[name] = running
            running.add_done_callback(
                lambda done: (self._ensuring.pop(name, None), done.cancelled() or done.exception())
            )
        await asyncio.shield(running)

    async def _ensure(self, name: str, partitions: int) -> None:
        try:
            await self.create(name, partitions=partitions, configs=INTERNAL_CONFIGS.get(name))
        except PartitionError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _sent(self, operation: Operation, deadline_ms: int) -> asyncio.Future[OperationResult]:
        """Pass an operation, for which the caller has acquired `_room`, to the session; release the room when
        the operation is answered.

        The operation stays in the session even if its client gives up earlier. So a client's shorter deadline
        does not apply there: the session drops an unsent operation only after the broker's own deadline.
        """
        deadline_ms = max(deadline_ms, self._deadline_ms)
        sent = asyncio.ensure_future(self._session.submit(operation, deadline_ms=deadline_ms))
        sent.add_done_callback(self._leave)
        return sent

    def _leave(self, sent: asyncio.Future[OperationResult]) -> None:
        self._room.release()
        if not sent.cancelled():
            sent.exception()  # the client may have given up: mark a failure as retrieved

    async def submit(self, operation: Operation, deadline_ms: int | None = None) -> OperationResult:
        """Execute an operation of a client; return when this broker's image shows its effect."""
        deadline_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._room.acquire()
                result = await asyncio.shield(self._sent(operation, deadline_ms))
            await self._progress.wait_for(result.commit_index, max(deadline_ms, IMAGE_WAIT_MS))
        except OperationError as error:
            # Other refusals (no broker, overload) do not concern the request itself: clients retry.
            raise PartitionError(
                _KAFKA_CODES.get(error.code, ErrorCode.REQUEST_TIMED_OUT), error.message
            ) from error
        except OperationTooLargeError as error:
            raise PartitionError(ErrorCode.INVALID_REQUEST, str(error)) from error
        except (OperationTimeoutError, MetadataLagError, SessionClosedError) as error:
            raise PartitionError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        except TimeoutError:
            kind = operation.WhichOneof("kind")
            message = f"{kind}: no answer within {deadline_ms} ms"
            raise PartitionError(ErrorCode.REQUEST_TIMED_OUT, message) from None
        return result


def _wire_changes(changes: Iterable[ConfigChange]) -> list[WireChange]:
    return [
        WireChange(name=change.name, kind=_CHANGE_KINDS[change.kind], value=change.value)
        for change in changes
    ]
