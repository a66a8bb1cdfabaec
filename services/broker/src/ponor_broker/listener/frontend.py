"""The port between a broker and its Kafka clients: real sockets, or the simulator.

It is bound before the broker registers, because the port number is part of the registration. It
accepts clients when everything else is ready.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from ponor_runtime.runtime import Runtime

from ponor_broker.listener.kafka_listener import KafkaListener
from ponor_broker.options import BrokerOptions
from ponor_broker.requests.connection import RequestDispatcher
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.settings import BrokerSettings


class Frontend(Protocol):
    """Accepts Kafka clients."""

    @property
    def port(self) -> int:
        """The port number for clients."""
        ...

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        """Accept clients."""
        ...

    async def close(self) -> None:
        """Stop accepting clients and close every connection. Idempotent."""
        ...


BindFrontend: TypeAlias = Callable[
    [Runtime, BrokerSettings, BrokerOptions, AnswerBacklog], Awaitable[Frontend]
]


async def bind_listener(
    runtime: Runtime, settings: BrokerSettings, options: BrokerOptions, backlog: AnswerBacklog
) -> Frontend:
    """Bind the sockets of a real broker.

    Raises:
        OSError: the address cannot be bound; the message names it.
    """
    return await KafkaListener.bind(
        options.kafka_host,
        options.kafka_port,
        settings,
        backlog=backlog,
        clock=runtime.clock,
        telemetry=runtime.telemetry,
        fail_stop=runtime.fail_stop,
    )
