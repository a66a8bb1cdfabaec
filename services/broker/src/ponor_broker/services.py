"""Composition of one broker behind its Kafka port: partitions, groups, handlers, dispatcher.

`app` owns registration, storage and sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_kafka.api import ApiKey
from ponor_kafka.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.identity import NodeId
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient

from ponor_broker.budgets import export_limits
from ponor_broker.configs.description import ConfigDescriptions
from ponor_broker.configs.sources import ConfigSources
from ponor_broker.coordination.shards import BrokerPorts
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.handlers.cluster.api_versions import VERSION_MAX, VERSION_MIN, ApiVersionsHandler
from ponor_broker.handlers.cluster.describe_cluster import describe_cluster
from ponor_broker.handlers.cluster.describe_quorum import DescribeQuorumHandler
from ponor_broker.handlers.cluster.log_dirs import alter_replica_log_dirs, describe_log_dirs
from ponor_broker.handlers.cluster.update_features import update_features
from ponor_broker.handlers.configs.alter_configs import AlterConfigsHandler
from ponor_broker.handlers.configs.config_resources import list_config_resources
from ponor_broker.handlers.configs.describe_configs import DescribeConfigsHandler
from ponor_broker.handlers.fetch.cold_reads import ColdReads
from ponor_broker.handlers.fetch.fetch import FetchHandler
from ponor_broker.handlers.fetch.fetch_parking import FetchParking, ReadBounds
from ponor_broker.handlers.fetch.fetch_session_cache import FetchSessionCache
from ponor_broker.handlers.groups.find_coordinator import FindCoordinatorHandler
from ponor_broker.handlers.groups.groups import group_handlers, share_group_handlers
from ponor_broker.handlers.metadata.describe_topic_partitions import describe_topic_partitions
from ponor_broker.handlers.metadata.metadata import MetadataHandler
from ponor_broker.handlers.offsets.delete_records import delete_records
from ponor_broker.handlers.offsets.end_offsets import EndOffsetFinder
from ponor_broker.handlers.offsets.list_offsets import ListOffsetsHandler
from ponor_broker.handlers.offsets.offset_for_leader_epoch import offsets_for_leader_epochs
from ponor_broker.handlers.produce.describe_producers import DescribeProducersHandler
from ponor_broker.handlers.produce.plain_produce import PlainProduceHandler
from ponor_broker.handlers.produce.produce import ProduceHandler
from ponor_broker.handlers.produce.producer_ids import ProducerIds
from ponor_broker.handlers.produce.verified_batches import VerifiedBatches
from ponor_broker.handlers.topics.create_partitions import create_partitions
from ponor_broker.handlers.topics.create_topics import CreateTopicsHandler
from ponor_broker.handlers.topics.delete_topics import DeleteTopicsHandler
from ponor_broker.handlers.topics.elect_leaders import elect_leaders
from ponor_broker.handlers.topics.partition_reassignments import PartitionReassignmentsHandler
from ponor_broker.handlers.transactions.write_txn_markers import WriteTxnMarkersHandler
from ponor_broker.load_report import LoadReporter
from ponor_broker.partition_services import PartitionServices
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.handoff.move_operations import MoveOperations
from ponor_broker.partitions.stable_offset_lag import StableOffsetLag
from ponor_broker.partitions.topics.announcements import Announcements
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topic_config import TopicConfigs
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.peers.connection_order import peer_client_id
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_broker.peers.tcp_connection import ConnectPeer
from ponor_broker.requests.api_handler import ApiHandler, WhenFenced
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.security_services import SecurityServices
from ponor_broker.serving import Serving, fence_after_ms
from ponor_broker.settings import BrokerSettings
from ponor_broker.share_services import ShareServices
from ponor_broker.transaction_services import TransactionServices

_TOPIC_RECORDS: Final = frozenset({"topic_created", "topic_deleted", "partition_changed"})
"""Kinds of records that create or delete topics or partitions."""
PRODUCER_EXPIRATION: Final = "producer.id.expiration.ms"


class BrokerServices:
    """All parts that serve requests. `start` begins to open partitions; `close` persists them. The caller
    closes their streams.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        *,
        node_id: NodeId,
        kafka_configs: Mapping[str, str],
        own_configs: Mapping[str, str],
        session: SessionClient,
        subscription: SubscriptionClient,
        quorum: QuorumClient,
        streams: StreamClient,
        backlog: AnswerBacklog,
        connect_peer: ConnectPeer,
        tasks: BackgroundTasks,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._node_id = node_id
        self._session = session
        self._subscription = subscription
        self._quorum = quorum
        self._tasks = tasks
        self.serving = Serving(
            runtime.clock,
            staleness_ms=lambda: subscription.staleness_ms,
            silence_ms=lambda: session.silence_ms,
        )
        self.topics, deadline_ms = Topics(lambda: subscription.image), settings.controller_timeout_ms
        self._announcements = Announcements(self.topics)
        self.admin = TopicAdmin(
            session, subscription, self.topics, self._announcements, deadline_ms=deadline_ms
        )
        self.security = SecurityServices(
            settings.security, runtime, lambda: subscription.image, self.admin, tasks.spawn
        )
        self.moves = MoveOperations(session, subscription)
        topic_configs = TopicConfigs(lambda: subscription.image, node_id, kafka_configs)
        self._sources = ConfigSources(lambda: subscription.image, node_id, kafka_configs)
        self._descriptions = ConfigDescriptions(self._sources, own_configs)
        own = self._partition_services(streams, topic_configs)
        self.partitions, self._maintenance, self._cleaner = own.partitions, own.maintenance, own.cleaner
        self.markers = WriteTxnMarkersHandler(own.markers)
        self._producer_ids = ProducerIds(
            session, per_block=settings.producer_ids_per_block, deadline_ms=deadline_ms
        )
        self._bounds = self._read_bounds(backlog)
        self.shares = self._share_services(connect_peer)
        self.coordinator = self._group_coordinator()
        self.peers = self._peer_connections(connect_peer)
        self.transactions = self._transaction_services()
        self._metadata = self._metadata_handler()
        self.dispatcher = self._dispatcher()
        self._stable_offset_lag = StableOffsetLag(self.partitions.all, runtime.clock, runtime.telemetry)
        runtime.telemetry.gauge("ponor_partitions_open", lambda: len(self.partitions))
        export_limits(runtime.telemetry, settings)

    def _partition_services(self, streams: StreamClient, topic_configs: TopicConfigs) -> PartitionServices:
        return PartitionServices(
            self._runtime,
            self._settings,
            node_id=self._node_id,
            topics=self.topics,
            topic_configs=topic_configs,
            streams=streams,
            session=self._session,
            moves=self.moves,
            serving=self.serving,
            tasks=self._tasks,
        )

    def _peer_connections(self, connect_peer: ConnectPeer) -> PeerConnections:
        return PeerConnections(
            connect_peer,
            self.topics,
            self._runtime,
            client_id=lambda number: peer_client_id(self._node_id, self._session.node_epoch, number),
        )

    def _coordinator_ports(self) -> BrokerPorts:
        registry = self.partitions.registry
        return BrokerPorts(registry, self.admin, self.topics, self.serving, self._node_id, self._runtime)

    def _group_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.partitions.registry,
            self.admin,
            self.topics,
            self.serving,
            node_id=self._node_id,
            runtime=self._runtime,
            settings=self._settings.groups,
            persister=self.shares.persister,
            group_configs=self.topics.group_configs,
        )

    def _transaction_services(self) -> TransactionServices:
        return TransactionServices(
            self._coordinator_ports(),
            self._settings,
            registry=self.partitions.registry,
            topics=self.topics,
            peers=self.peers,
            groups=self.coordinator,
            producer_ids=self._producer_ids,
            write_markers=self.markers.write_txn_markers,
        )

    def _read_bounds(self, backlog: AnswerBacklog) -> ReadBounds:
        settings, runtime = self._settings, self._runtime
        return ReadBounds(
            ColdReads(settings, clock=runtime.clock, telemetry=runtime.telemetry),
            FetchParking(settings.parked_fetches_max, runtime.telemetry),
            backlog,
        )

    def _share_services(self, connect_peer: ConnectPeer) -> ShareServices:
        return ShareServices(
            self._coordinator_ports(),
            self._settings,
            topics=self.topics,
            connect_peer=connect_peer,
            partitions=self.partitions,
            bounds=self._bounds,
            group_configs=self.topics.group_configs,
        )

    def _metadata_handler(self) -> MetadataHandler:
        return MetadataHandler(
            self.topics,
            self.admin,
            self._announcements,
            self._tasks.spawn,
            node_id=self._node_id,
            auto_create=self._settings.auto_create_topics,
            partitions_of_new=self._partitions_of_new,
        )

    def _dispatcher(self) -> Dispatcher:
        settings, clock = self._settings, self._runtime.clock
        validator = BatchValidator(decompressed_batch_bytes_max=settings.decompressed_batch_bytes_max)
        return Dispatcher(
            self._handlers(),
            raw={
                ApiKey.PRODUCE: ProduceHandler(
                    self.partitions,
                    validator,
                    VerifiedBatches(self.transactions.verifier),
                    clock,
                    self._runtime.telemetry,
                ),
                ApiKey.FETCH: self._fetch_handler(),
                ApiKey.METADATA: self._metadata,
            },
            plain=PlainProduceHandler(
                self.partitions, clock, batch_bytes_max=settings.decompressed_batch_bytes_max
            ),
            serving=self.serving,
            clock=clock,
            telemetry=self._runtime.telemetry,
        )

    def _fetch_handler(self) -> FetchHandler:
        settings, runtime = self._settings, self._runtime
        return FetchHandler(
            self.partitions,
            self._bounds.backlog,
            self._bounds.cold_reads,
            FetchSessionCache(
                settings,
                clock=runtime.clock,
                randomness=runtime.randomness,
                telemetry=runtime.telemetry,
            ),
            self._bounds.parking,
            self.serving,
            settings,
        )

    def _handlers(self) -> list[ApiHandler]:
        """Return the APIs whose requests the dispatcher decodes, with their versions."""
        topics, admin, partitions, node_id = self.topics, self.admin, self.partitions, self._node_id
        timeout_ms = self._settings.controller_timeout_ms
        configs = AlterConfigsHandler(topics, admin, node_id=node_id)
        descriptions = DescribeConfigsHandler(topics, self._descriptions, node_id=node_id)
        creation = CreateTopicsHandler(
            topics, admin, self._descriptions, num_partitions=self._settings.num_partitions
        )
        deletion = DeleteTopicsHandler(topics, admin)
        moves = PartitionReassignmentsHandler(topics, self.moves)
        quorum = DescribeQuorumHandler(self._quorum, self._runtime.clock, timeout_ms=timeout_ms)
        versions = ApiVersionsHandler(
            lambda: self.dispatcher.advertised, topics, self.serving, node_id=node_id
        )
        offsets, producers = ListOffsetsHandler(partitions), DescribeProducersHandler(partitions)
        coordinators = FindCoordinatorHandler(
            self.coordinator.shards,
            self.transactions.coordinator.shards,
            self.shares.coordinator.shards,
            topics.broker,
        )
        ends = EndOffsetFinder(self.peers, topics, offsets, node_id=node_id)
        epochs = partial(offsets_for_leader_epochs, partitions)
        refuses = WhenFenced.REFUSES
        return [
            ApiHandler(ApiKey.LIST_OFFSETS, 1, 11, offsets.handle, refuses),
            ApiHandler(ApiKey.API_VERSIONS, VERSION_MIN, VERSION_MAX, versions.handle, refuses),
            ApiHandler(ApiKey.CREATE_TOPICS, 2, 7, creation.handle),
            ApiHandler(ApiKey.DELETE_TOPICS, 1, 6, deletion.handle),
            ApiHandler(ApiKey.DELETE_RECORDS, 0, 2, partial(delete_records, partitions), refuses),
            ApiHandler(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, epochs, refuses),
            ApiHandler(ApiKey.WRITE_TXN_MARKERS, 1, 2, self.markers.handle, refuses),
            ApiHandler(ApiKey.DESCRIBE_CONFIGS, 1, 4, descriptions.handle),
            ApiHandler(ApiKey.ALTER_CONFIGS, 0, 2, configs.replace),
            ApiHandler(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, partial(alter_replica_log_dirs, topics)),
            ApiHandler(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, partial(describe_log_dirs, partitions)),
            ApiHandler(ApiKey.CREATE_PARTITIONS, 0, 3, partial(create_partitions, topics, admin)),
            ApiHandler(ApiKey.ELECT_LEADERS, 0, 2, partial(elect_leaders, topics)),
            ApiHandler(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, configs.change),
            ApiHandler(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, moves.alter),
            ApiHandler(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, moves.ongoing),
            ApiHandler(ApiKey.DESCRIBE_QUORUM, 0, 2, quorum.handle),
            ApiHandler(ApiKey.UPDATE_FEATURES, 0, 2, partial(update_features, self._quorum)),
            ApiHandler(ApiKey.DESCRIBE_CLUSTER, 0, 2, partial(describe_cluster, topics, node_id)),
            ApiHandler(ApiKey.DESCRIBE_PRODUCERS, 0, 0, producers.handle, refuses),
            ApiHandler(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, partial(list_config_resources, topics)),
            ApiHandler(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, partial(describe_topic_partitions, topics)),
            ApiHandler(ApiKey.FIND_COORDINATOR, 0, 6, coordinators.handle, refuses),
            *self.security.handlers(),
            *group_handlers(self.coordinator, topics, self._runtime.clock, self.transactions.verifier),
            *share_group_handlers(self.coordinator, self.shares.persister, topics, ends),
            *self.transactions.handlers(),
            *self.shares.handlers(),
        ]

    def start(self) -> None:
        """Follow the image and open the partitions that this broker leads."""
        self._subscription.listeners.append(self._image_changed)
        self._subscription.image_listeners.append(lambda _: self._image_changed(None))
        self.security.start(self._runtime.health)
        self.coordinator.start()
        self.transactions.start()
        self.shares.start()
        self._tasks.spawn(self.partitions.run(), "partitions")
        self._tasks.spawn(self._maintenance.run(), "partition maintenance")
        self._tasks.spawn(self._cleaner.run(), "log cleaner")
        self._tasks.spawn(self._load_reporter().run(), "load reports")
        self._tasks.spawn(self._stable_offset_lag.run(), "last stable offsets")
        wal = self._session.identity.wal or WalKind.FILE
        self.serving.limit(
            fence_after_ms(self._settings.self_fence_ms, wal, self._session.session_timeout_ms)
        )
        self._runtime.health.require("fence", lambda: self.serving.refusal or "")
        self._tasks.spawn(self.serving.watch(), "permission to answer")
        self._runtime.health.require("partitions", self._unopened)

    def _unopened(self) -> str:
        """Return the reason why the broker is not ready: it leads partitions and has opened none.

        A single partition that cannot be opened does not make a broker unready: otherwise the bootstrap
        service would drop the broker, with all partitions that it serves.
        """
        led = len(self.topics.led_by(self._node_id))
        is_unready = led and not len(self.partitions)
        return f"none of the {led} partitions that this broker leads is open" if is_unready else ""

    def _load_reporter(self) -> LoadReporter:
        return LoadReporter(
            self._runtime.clock,
            self._runtime.process,
            interval_ms=self._settings.load_report_ms,
            partitions=self.partitions.all,
            requests=lambda: self.dispatcher.requests,
            send=self._session.report_load,
        )

    async def close(self) -> None:
        """Answer waiting requests, persist every partition."""
        await self.coordinator.close()
        await self.transactions.close()
        await self.shares.close()
        await self.peers.close()
        await self.partitions.close()

    def _image_changed(self, batch: RecordBatch | None) -> None:
        self._announcements.image_changed(batch)
        self.security.image_changed(batch)
        if self.partitions.image_changed(batch):
            self._metadata.invalidate()
            self.peers.image_changed()
            self.coordinator.shards.image_changed()
            self.transactions.coordinator.shards.image_changed()
            self.shares.image_changed()
        if batch is None or any(record.WhichOneof("kind") in _TOPIC_RECORDS for record in batch.records):
            self.coordinator.topics_changed()
        if batch is None or any(record.HasField("topic_deleted") for record in batch.records):
            self.coordinator.topics_deleted()
            self.shares.coordinator.topics_deleted()
        if batch is None or any(record.HasField("broker_configs_set") for record in batch.records):
            in_force = self._sources.of_broker(PRODUCER_EXPIRATION)[0]
            self._maintenance.expire_producers_after(int(in_force.value))

    def _partitions_of_new(self, name: str) -> int:
        if name == OFFSETS_TOPIC:
            return self._settings.groups.offsets_topic_partitions
        if name == TRANSACTIONS_TOPIC:
            return self._settings.transactions.transaction_topic_partitions
        if name == SHARE_STATE_TOPIC:
            return self._settings.share_state.share_state_topic_partitions
        return self._settings.num_partitions
