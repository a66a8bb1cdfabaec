"""Composition of a broker's transactions: coordinator, markers and verification."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.coordination.shards import BrokerPorts
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.handlers.produce.producer_ids import ProducerIds
from ponor_broker.handlers.produce.verified_batches import Verifier
from ponor_broker.handlers.transactions.add_partitions import AddPartitionsHandler
from ponor_broker.handlers.transactions.transactions import transaction_handlers
from ponor_broker.partitions.open_partitions import OpenPartitions
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_broker.requests.api_handler import ApiHandler
from ponor_broker.settings import BrokerSettings
from ponor_broker.transactions.coordinator import TransactionCoordinator
from ponor_broker.transactions.marker_sender import MarkerSender, WriteMarkers
from ponor_broker.transactions.verification import TransactionVerifier

VERIFICATION_MS_MAX: Final = 10_000
"""Longest wait of a transactional batch for its coordinator."""


class TransactionServices:
    """Call `start` before partitions open. Call `close` before partitions and connections to peers close."""

    def __init__(
        self,
        ports: BrokerPorts,
        settings: BrokerSettings,
        *,
        registry: OpenPartitions,
        topics: Topics,
        peers: PeerConnections,
        groups: GroupCoordinator,
        producer_ids: ProducerIds,
        write_markers: WriteMarkers,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._producer_ids = producer_ids
        self._markers = MarkerSender(peers, topics, write_markers, ports.runtime, node_id=ports.node_id)
        self.coordinator = TransactionCoordinator(
            ports,
            settings=settings.transactions,
            markers=self._markers,
            take_producer_id=producer_ids.take_or_none,
            offsets_partition_of=groups.shards.partition_of,
        )
        self._adds = AddPartitionsHandler(self.coordinator, topics)
        self.verifier: Verifier = TransactionVerifier(
            peers,
            topics,
            self._adds.answer,
            ports.runtime,
            node_id=ports.node_id,
            bytes_max=settings.park_bytes_max,
            wait_ms_max=VERIFICATION_MS_MAX,
            retry_backoff_ms=settings.transactions.transaction_add_retry_ms,
            retry_ms_max=settings.transactions.transaction_add_retry_ms_max,
        )
        registry.removed.append(self._partition_removed)

    def handlers(self) -> list[ApiHandler]:
        """Return the APIs of transactional producers."""
        return transaction_handlers(
            self.coordinator, self._adds, self._producer_ids, self._groups, self._topics
        )

    def start(self) -> None:
        """Start the marker sender, the coordinator and the verifier."""
        self._markers.start()
        self.coordinator.start()
        self.verifier.start()

    async def close(self) -> None:
        """Answer waiting requests and stop."""
        await self.coordinator.close()
        await self.verifier.close()
        await self._markers.close()

    def _partition_removed(self, partition: Partition) -> None:
        where = (partition.identity.topic, partition.identity.index)
        self.verifier.refuse(where, ErrorCode.NOT_LEADER_OR_FOLLOWER)
