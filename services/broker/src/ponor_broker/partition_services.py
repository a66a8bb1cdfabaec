"""Composition of a broker's partitions: opening, moves, maintenance, cleaning, markers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation, PutKey, PutKeys
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.streams import StreamRow
from ponor_runtime.identity import NodeId
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient

from ponor_broker.partitions.cleaning.cleaner import LogCleaner
from ponor_broker.partitions.cleaning.cleaning_pass import CleaningLimits
from ponor_broker.partitions.cleaning.pace import Pace
from ponor_broker.partitions.handoff.handoff_source import HandoffSource
from ponor_broker.partitions.handoff.handoff_target import HandoffTarget
from ponor_broker.partitions.handoff.move_operations import MoveOperations
from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.handoff.partition_opener import PartitionOpener
from ponor_broker.partitions.handoff.target_release import TargetRelease
from ponor_broker.partitions.handoff.transit_parking import TransitParking
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.maintenance.maintenance import PartitionMaintenance
from ponor_broker.partitions.maintenance.maintenance_schedule import MaintenanceSchedule
from ponor_broker.partitions.marker_writer import MarkerWriter
from ponor_broker.partitions.open_partitions import OpenPartitions
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfigs
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.serving import Serving
from ponor_broker.settings import BrokerSettings
from ponor_broker.storage.wal_manager import submit


class PartitionServices:
    """The parts of a broker that own partitions.

    Attributes:
        partitions: opens and serves them.
        maintenance: retention and other periodic work.
        cleaner: cleans compacted ones.
        markers: writes the markers of transactions.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        *,
        node_id: NodeId,
        topics: Topics,
        topic_configs: TopicConfigs,
        streams: StreamClient,
        session: SessionClient,
        moves: MoveOperations,
        serving: Serving,
        tasks: BackgroundTasks,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._node_id = node_id
        self._session = session
        self._tasks = tasks
        self._topics = topics
        self._moves = moves
        self._serving = serving
        schedule = MaintenanceSchedule(runtime.clock)
        owned = OwnedStreams(streams, topics, node_id, attend=schedule.touch)
        self.partitions: Final = self._manager(streams, topic_configs, schedule)
        self.maintenance: Final = PartitionMaintenance(
            self.partitions,
            owned,
            schedule,
            runtime.clock,
            runtime.telemetry,
            interval_ms=settings.maintenance_interval_ms,
            producer_expiration_ms=settings.producer_expiration_ms,
        )
        self.cleaner: Final = self._log_cleaner(self.partitions, owned, schedule)
        self.markers: Final = MarkerWriter(self.partitions, owned, runtime.clock)

    def _manager(
        self, streams: StreamClient, topic_configs: TopicConfigs, schedule: MaintenanceSchedule
    ) -> PartitionManager:
        settings, clock = self._settings, self._runtime.clock
        refused = RefusedSequences(clock)
        opener = PartitionOpener(
            streams,
            self._topics,
            self._put_keys,
            clock,
            config=topic_configs.static_defaults,
            producers_max=settings.producers_per_partition_max,
            attend=schedule.touch,
            refused=refused,
        )
        parking = TransitParking(
            ms_max=settings.park_ms_max,
            bytes_max=settings.park_bytes_max,
            telemetry=self._runtime.telemetry,
        )
        registry = OpenPartitions(self._topics, topic_configs, parking)
        return PartitionManager(
            self._topics,
            registry,
            *self._handoff(streams, opener, registry),
            refused,
            self._serving,
            node_id=self._node_id,
            tasks=self._tasks,
        )

    def _handoff(
        self, streams: StreamClient, opener: PartitionOpener, registry: OpenPartitions
    ) -> tuple[HandoffTarget, HandoffSource]:
        clock, tasks, telemetry = self._runtime.clock, self._tasks, self._runtime.telemetry
        target = HandoffTarget(
            opener,
            TargetRelease(streams, self._moves, clock, open_here=self._open_here),
            self._topics,
            node_id=self._node_id,
            clock=clock,
            tasks=tasks,
            telemetry=telemetry,
            on_opened=registry.add,
            on_undecided=registry.note_stale,
        )
        source = HandoffSource(
            streams,
            self._moves,
            clock=clock,
            tasks=tasks,
            telemetry=telemetry,
            open_here=self._open_here,
            on_sealed=registry.refuses_appends,
            on_kept=registry.accepts_appends,
            on_undecided=registry.note_stale,
        )
        return target, source

    def _open_here(self, key: PartitionKey) -> Sequence[StreamRow]:
        """Return the streams of a partition that the image shows open at this broker."""
        return self._topics.streams_open_at(key, self._node_id)

    def _log_cleaner(
        self, partitions: PartitionManager, owned: OwnedStreams, schedule: MaintenanceSchedule
    ) -> LogCleaner:
        settings, clock = self._settings, self._runtime.clock
        return LogCleaner(
            partitions.all,
            owned,
            schedule.touch,
            clock,
            self._runtime.telemetry,
            CleaningLimits(settings.cleaner_map_bytes_max, settings.decompressed_batch_bytes_max),
            Pace(
                clock,
                bytes_per_s_max=settings.cleaner_io_bytes_per_s_max,
                busy_percent_max=settings.cleaner_busy_percent_max,
            ),
            interval_ms=settings.cleaner_interval_ms,
        )

    async def _put_keys(self, puts: Sequence[tuple[str, bytes]]) -> list[bytes]:
        body = PutKeys(puts=[PutKey(key=key, value=value) for key, value in puts])
        result = await submit(self._session, Operation(put_keys=body))
        return [held.value for held in result.keys_held.held]
