"""A Kafka client's connection on the simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ponor_broker.peers.kafka_connection import KafkaConnection
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.cluster.kafka_frontend import KAFKA


class KafkaClient(KafkaConnection):
    """One connection. Many requests may be in flight; a broken connection fails them all."""

    @classmethod
    async def connect(cls, runtime: Runtime, address: str, name: str) -> KafkaClient:
        """Open a connection.

        Raises:
            ConnectionClosedError: no listener, or no answer.
        """
        return cls(await runtime.network.connect(address, KAFKA), name)

    @classmethod
    @asynccontextmanager
    async def connected(cls, runtime: Runtime, address: str, name: str) -> AsyncIterator[KafkaClient]:
        """Open a connection for the block; the errors are those of `connect`."""
        client = await cls.connect(runtime, address, name)
        try:
            yield client
        finally:
            await client.close()
