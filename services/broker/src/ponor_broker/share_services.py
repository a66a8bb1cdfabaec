"""Composition of a broker's share groups: durable state, its persister, and the delivery of records."""

from __future__ import annotations

from functools import partial
from typing import Final

from ponor_broker.coordination.ports import GroupConfigs
from ponor_broker.coordination.shards import BrokerPorts
from ponor_broker.coordination.share_persister import SharePersister
from ponor_broker.handlers.fetch.fetch_parking import ReadBounds
from ponor_broker.handlers.share.share import ShareDelivery
from ponor_broker.handlers.share_state.share_state import ShareStateHandlers
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_broker.peers.tcp_connection import ConnectPeer
from ponor_broker.requests.api_handler import ApiHandler
from ponor_broker.settings import BrokerSettings
from ponor_broker.share_state.coordinator import ShareCoordinator
from ponor_broker.share_state.persister import CONNECTIONS_PER_BROKER, CoordinatorPersister


class ShareServices:
    """Call `start` before partitions open. Call `close` before partitions close."""

    def __init__(
        self,
        ports: BrokerPorts,
        settings: BrokerSettings,
        *,
        topics: Topics,
        connect_peer: ConnectPeer,
        partitions: PartitionManager,
        bounds: ReadBounds,
        group_configs: GroupConfigs,
    ) -> None:
        self.coordinator: Final = ShareCoordinator(ports, settings=settings.share_state)
        self._state_handlers = ShareStateHandlers(self.coordinator, ports.runtime.clock)
        peers = [
            PeerConnections(
                connect_peer, topics, ports.runtime, client_id=partial(_client_id, ports.node_id, pool)
            )
            for pool in range(CONNECTIONS_PER_BROKER)
        ]
        self._persister = CoordinatorPersister(
            peers,
            topics,
            self._state_handlers,
            ports.runtime,
            node_id=ports.node_id,
            settings=settings.share_state,
            create_topic=self.coordinator.shards.create_topic,
        )
        self.persister: SharePersister = self._persister
        self.delivery: Final = ShareDelivery(
            self.persister, partitions, bounds, ports.serving, ports.runtime, settings, group_configs
        )

    def handlers(self) -> list[ApiHandler]:
        """Return the APIs of the share coordinator and of members that fetch."""
        return [*self._state_handlers.handlers(), *self.delivery.handlers()]

    def start(self) -> None:
        """Start the coordinator and the persister."""
        self.coordinator.start()
        self._persister.start()

    async def close(self) -> None:
        """Answer waiting requests and stop."""
        await self.delivery.close()
        await self._persister.close()
        await self.coordinator.close()

    def image_changed(self) -> None:
        """Note that topics, partitions or brokers changed."""
        self.coordinator.shards.image_changed()
        self._persister.image_changed()


def _client_id(node_id: int, pool: int, number: int) -> str:
    return f"share-state-{node_id}/{pool}/{number}"
