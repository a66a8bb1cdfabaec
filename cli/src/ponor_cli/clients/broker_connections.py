"""Connections to several brokers of one cluster, opened on demand."""

from __future__ import annotations

from typing import Self

from ponor_kafka.messages.metadata import MetadataResponse
from ponor_runtime.host_port import join_host_port

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.errors import CommandError


class BrokerConnections:
    """One connection to each live broker that a command needs.

    Raises (all calls): `CommandError` when a broker cannot be reached.
    """

    def __init__(self, bootstrap: str) -> None:
        self.any = KafkaClient(bootstrap)
        self._opened: dict[int, KafkaClient] = {}
        self._addresses: dict[int, str] = {}
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self.any, *self._opened.values()):
            client.close()

    @property
    def node_ids(self) -> list[int]:
        """The live brokers at the last `refresh`, in order."""
        return sorted(self._addresses)

    def refresh(self) -> None:
        """Read the addresses of the live brokers again."""
        response: MetadataResponse = self.any.metadata([])
        self._addresses = {row.node_id: join_host_port(row.host, row.port) for row in response.brokers}

    def of(self, node_id: int) -> KafkaClient:
        """Return the connection to a broker.

        Raises:
            CommandError: the broker is not live, or does not accept the connection.
        """
        if node_id not in self._opened:
            if node_id not in self._addresses:
                raise CommandError(
                    f"broker {node_id} is not live; `ponor cluster info` shows the live brokers"
                )
            self._opened[node_id] = KafkaClient(self._addresses[node_id])
        return self._opened[node_id]
