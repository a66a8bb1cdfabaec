"""Brokers that answer Kafka requests on the simulated network, as peers of the code under test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from ponor_kafka.codec import decode, encode
from ponor_kafka.headers import decode_request_header, encode_response_header
from ponor_kafka.message import Message
from ponor_runtime.network import Connection
from ponor_runtime.runtime import Runtime

KAFKA = "kafka"
PORT = 9092
Answer = Callable[[Message, str | None], Awaitable[Message | None]]
"""Answers a request of a client id; None: with the answer to another request."""


class Address(NamedTuple):
    host: str
    port: int


@dataclass
class Directory:
    """The brokers of the image; the host of a broker is the name of its process."""

    hosts: dict[int, str]

    def broker(self, node_id: int) -> Address | None:
        host = self.hosts.get(node_id)
        return None if host is None else Address(host, PORT)


def listening(name: str, answer: Answer) -> Callable[[Runtime], Awaitable[None]]:
    """Return the program of a broker that answers requests one after the other."""

    async def main(runtime: Runtime) -> None:
        async def serve(connection: Connection) -> None:
            while True:
                await connection.send(await respond(await connection.receive(), answer))

        await runtime.network.listen(f"{name}:{PORT}", {KAFKA: serve})
        await asyncio.Event().wait()

    return main


async def respond(frame: bytes | bytearray, answer: Answer) -> bytes:
    """Return the response frame to a request frame, both without length."""
    header = decode_request_header(frame)
    request, _ = decode(header.api_key, header.api_version, bytes(frame), header.body_position)
    message = await answer(request, header.client_id)
    if message is None:
        return encode_response_header(header.api_key, header.api_version, header.correlation_id + 1)
    body = encode(message, header.api_version)
    return encode_response_header(header.api_key, header.api_version, header.correlation_id) + body
