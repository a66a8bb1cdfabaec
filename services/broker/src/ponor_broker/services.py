"""The parts of one broker behind its Kafka port, connected: partitions, groups, handlers, dispatcher.

What lives here: construction and wiring. Registration, storage and sockets are `app`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ponor.controller.v1.session_service_pb2 import Operation, PutKey
from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_kafka.api import ApiKey
from ponor_metadata.errors import SessionClosedError
from ponor_metadata.session import SessionClient
from ponor_metadata.subscription import SubscriptionClient
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient
from s3stream.errors import StreamClosedError

from ponor_broker.answer_backlog import AnswerBacklog
from ponor_broker.dispatch import Dispatcher
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.ports import OFFSETS_TOPIC, OffsetsPartitions
from ponor_broker.handlers.api_versions import ApiVersionsHandler
from ponor_broker.handlers.create_topics import CreateTopicsHandler
from ponor_broker.handlers.delete_topics import DeleteTopicsHandler
from ponor_broker.handlers.describe_cluster import DescribeClusterHandler
from ponor_broker.handlers.describe_configs import DescribeConfigsHandler
from ponor_broker.handlers.fetch import ColdReads, FetchHandler
from ponor_broker.handlers.groups import group_handlers
from ponor_broker.handlers.init_producer_id import InitProducerIdHandler
from ponor_broker.handlers.leader_epochs import LeaderEpochsHandler
from ponor_broker.handlers.list_offsets import ListOffsetsHandler
from ponor_broker.handlers.metadata import MetadataHandler
from ponor_broker.handlers.produce import ProduceHandler
from ponor_broker.handlers.registry import ApiHandler
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.maintenance import PartitionMaintenance
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.partition_opener import PartitionOpener
from ponor_broker.partitions.topic_admin import TopicAdmin
from ponor_broker.partitions.topic_config import TopicConfig
from ponor_broker.partitions.topics import Topics
from ponor_broker.producer_ids import ProducerIds
from ponor_broker.settings import BrokerSettings
from ponor_broker.storage.refusals import storage_error_of


class BrokerServices:
    """Everything that a request needs. `start` begins to open partitions; `close` seals them, their streams are the caller's to close."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        *,
        node_id: NodeId,
        broker_configs: Mapping[str, str],
        session: SessionClient,
        subscription: SubscriptionClient,
        streams: StreamClient,
        backlog: AnswerBacklog,
        tasks: BackgroundTasks,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._node_id = node_id
        self._broker_configs = broker_configs
        self._session = session
        self._subscription = subscription
        self._tasks = tasks
        self.topics = Topics(lambda: subscription.image)
        deadline_ms = settings.controller_timeout_ms
        self.admin = TopicAdmin(session, subscription, self.topics, deadline_ms=deadline_ms)
        opener = PartitionOpener(
            streams,
            self.topics,
            self._put_key,
            runtime.clock,
            config=_topic_defaults(settings),
            producers_max=settings.producers_per_partition_max,
        )
        self.partitions = PartitionManager(
            self.topics, self.admin, opener, node_id=node_id, clock=runtime.clock, tasks=tasks
        )
        self._maintenance = PartitionMaintenance(
            self.partitions, opener, runtime.clock, producer_expiration_ms=settings.producer_expiration_ms
        )
        self._producer_ids = ProducerIds(
            session, per_block=settings.producer_ids_per_block, deadline_ms=deadline_ms
        )
        self.coordinator = GroupCoordinator(
            # A cast, because futures are invariant in their result: ours are futures of a class that fulfils the port's protocol.
            cast("OffsetsPartitions", self.partitions),
            self.topics,
            self.topics,
            runtime=runtime,
            settings=settings.groups,
        )
        self._metadata = MetadataHandler(
            self.topics,
            self.admin,
            tasks.spawn,
            node_id=node_id,
            auto_create=settings.auto_create_topics,
            partitions_of_new=self._partitions_of_new,
        )
        self.dispatcher = self._dispatcher(backlog)
        runtime.telemetry.gauge("ponor_partitions_open", lambda: len(self.partitions))

    def _dispatcher(self, backlog: AnswerBacklog) -> Dispatcher:
        settings, clock = self._settings, self._runtime.clock
        validator = BatchValidator(validate_records_max=settings.validate_records_max)
        cold_reads = ColdReads(
            in_flight_max=settings.cold_reads_in_flight_max,
            waiting_max=settings.cold_reads_waiting_max,
            ms_max=settings.cold_read_ms_max,
        )
        return Dispatcher(
            self._handlers(),
            raw={
                ApiKey.PRODUCE: ProduceHandler(self.partitions, validator, clock),
                ApiKey.FETCH: FetchHandler(self.partitions, backlog, cold_reads, settings),
                ApiKey.METADATA: self._metadata,
            },
            clock=clock,
            telemetry=self._runtime.telemetry,
        )

    def _handlers(self) -> list[ApiHandler]:
        return [
            ApiVersionsHandler(lambda: self.dispatcher.advertised).api,
            CreateTopicsHandler(self.admin).api,
            DeleteTopicsHandler(self.topics, self.admin).api,
            DescribeClusterHandler(self.topics, node_id=self._node_id).api,
            DescribeConfigsHandler(
                self.topics,
                node_id=self._node_id,
                broker_configs=self._broker_configs,
                topic_defaults=_topic_defaults(self._settings),
            ).api,
            InitProducerIdHandler(self._producer_ids).api,
            LeaderEpochsHandler(self.partitions).api,
            ListOffsetsHandler(self.partitions).api,
            *group_handlers(self.coordinator, self.topics, self._runtime.clock),
        ]

    def start(self) -> None:
        """Follow the image and open what this broker leads."""
        self._subscription.listeners.append(self._image_changed)
        self._subscription.image_listeners.append(lambda _: self._image_changed(None))
        self.coordinator.start()
        self._tasks.spawn(self.partitions.run(), "partitions")
        self._tasks.spawn(self._maintenance.run(), "partition maintenance")

    async def close(self) -> None:
        """Answer what waits, persist every partition."""
        await self.coordinator.close()
        await self.partitions.close()

    def _image_changed(self, batch: RecordBatch | None) -> None:
        if self.partitions.image_changed(batch):
            self._metadata.invalidate()

    def _partitions_of_new(self, name: str) -> int:
        if name == OFFSETS_TOPIC:
            return self._settings.groups.offsets_topic_partitions
        return self._settings.num_partitions

    async def _put_key(self, key: str, value: bytes) -> bytes:
        try:
            result = await self._session.submit(Operation(put_key=PutKey(key=key, value=value)))
        except OperationError as error:
            raise storage_error_of(error) from error
        except SessionClosedError as error:
            raise StreamClosedError(str(error)) from error
        return result.key_held.value


def _topic_defaults(settings: BrokerSettings) -> TopicConfig:
    return TopicConfig(
        message_bytes_max=settings.message_bytes_max,
        timestamp_after_ms_max=settings.timestamp_after_ms_max,
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
    )
