"""SASL at a real listener: what a client may do before it is authenticated, and after its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from ponor_broker.handlers.security.sasl import SaslHandlers
from ponor_broker.listener.kafka_listener import KafkaListener
from ponor_broker.options import ListenerOptions, ListenerProtocol
from ponor_broker.requests.api_handler import ApiHandler, RequestContext
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.security.authentication import REQUEST_BYTES_MAX
from ponor_broker.security.mechanisms import ExchangeFactory
from ponor_broker.security.scram_credentials import ScramCredential
from ponor_broker.settings import BrokerSettings
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ponor_kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ponor_kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ponor_metadata.nouns.scram_credentials import ScramMechanism
from ponor_runtime.host_port import split_host_port
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.listener.test_kafka_listener import LIMITS, framed, on_uvloop, until
from services.broker.tests.security.test_scram import Client, credential
from services.broker.tests.serving_kit import Permission

SHA_256 = ScramMechanism.SHA_256
USERS = {"alice": credential(SHA_256, "secret"), "bob": credential(SHA_256, "bob-secret")}
VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 1, ApiKey.DESCRIBE_CLUSTER: 0}


def find(user: str, mechanism: ScramMechanism) -> ScramCredential | None:
    return USERS.get(user) if mechanism is SHA_256 else None


async def whoami(_: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    return DescribeClusterResponse(cluster_id=context.connection.principal, brokers=[])


@asynccontextmanager
async def serving(
    *, limits: BrokerSettings = LIMITS, session_ms_max: int = 0
) -> AsyncIterator[tuple[KafkaListener, int]]:
    clock, telemetry = SystemClock(), Telemetry()
    sasl = SaslHandlers(ExchangeFactory(find, SystemRandomness()), clock, session_ms_max=session_ms_max)
    handlers = [*sasl.handlers(), ApiHandler(ApiKey.DESCRIBE_CLUSTER, 0, 0, whoami)]
    dispatcher = Dispatcher(
        handlers, raw={}, serving=Permission(clock).serving, clock=clock, telemetry=telemetry
    )
    listener = await KafkaListener.bind(
        "127.0.0.1",
        0,
        limits,
        further=(
            ListenerOptions("SASL", ListenerProtocol.SASL_PLAINTEXT, mechanisms=("SCRAM-SHA-256", "PLAIN")),
        ),
        backlog=AnswerBacklog(1 << 30),
        clock=clock,
        telemetry=telemetry,
        fail_stop=_no_fail_stop,
    )
    await listener.serve(dispatcher)
    try:
        yield listener, split_host_port(listener.addresses["SASL"])[1]
    finally:
        while OPENED:
            OPENED.pop().writer.transport.abort()
        await listener.close()
        await asyncio.sleep(0.01)  # uvloop closes transports in a later turn


def _no_fail_stop(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


class Wire:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        OPENED.append(cls(*await asyncio.open_connection("127.0.0.1", port)))
        return OPENED[-1]

    async def ask(self, key: ApiKey, request: Message) -> Any:
        version = VERSIONS[key]
        self.writer.write(framed(encode_request_header(key, version, 7, "c") + encode(request, version)))
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        answer = await self.reader.readexactly(size)
        _, position = decode_response_header(key, version, answer)
        return decode_response(key, version, answer, position)[0]

    async def handshake(self, mechanism: str) -> SaslHandshakeResponse:
        answer = await self.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism))
        return cast("SaslHandshakeResponse", answer)

    async def token(self, token: bytes) -> SaslAuthenticateResponse:
        answer = await self.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=token))
        return cast("SaslAuthenticateResponse", answer)

    async def plain(self, user: str, password: str) -> SaslAuthenticateResponse:
        assert (await self.handshake("PLAIN")).error_code == ErrorCode.NONE
        return await self.token(f"\0{user}\0{password}".encode())

    async def whoami(self) -> str:
        answer = await self.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        return str(answer.cluster_id)

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:  # the broker closed without reading everything
            return True


OPENED: list[Wire] = []
"""Connections that `serving` closes."""


@on_uvloop
async def test_scram_authenticates_and_gives_the_limits_of_the_listener() -> None:
    async with serving() as (listener, port):
        wire = await Wire.open(port)
        assert (await wire.handshake("SCRAM-SHA-256")).mechanisms == ["SCRAM-SHA-256", "PLAIN"]
        client = Client(SHA_256, "alice", "secret")
        first = await wire.token(client.first())
        final = await wire.token(client.final(bytes(first.auth_bytes)))
        assert bytes(final.auth_bytes) == client.verifier
        assert final.session_lifetime_ms == 0
        assert await wire.whoami() == "User:alice"
        assert not listener._shared.pending
        assert (await wire.handshake("SCRAM-SHA-256")).error_code == ErrorCode.ILLEGAL_SASL_STATE


@on_uvloop
async def test_no_request_is_handled_before_the_authentication() -> None:
    async with serving() as (listener, port):
        wire = await Wire.open(port)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await wire.whoami()
        await until(lambda: listener.connections == 0)
        wire = await Wire.open(port)
        await wire.handshake("PLAIN")
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await wire.whoami()


@on_uvloop
async def test_requests_sent_ahead_of_the_authentication_wait_for_it() -> None:
    async with serving() as (_, port):
        wire = await Wire.open(port)
        requests: list[tuple[ApiKey, Message]] = [
            (ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN")),
            (ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong")),
            (ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest()),
        ]
        wire.writer.write(
            b"".join(
                framed(encode_request_header(key, VERSIONS[key], 7, "c") + encode(request, VERSIONS[key]))
                for key, request in requests
            )
        )
        answers = await wire.reader.read(-1)
        assert answers.count(b"\x00\x00\x00\x07") == 2, "the request after the failure must not be answered"


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("mallory", "secret"), ("bob", "secret"), ("", "secret")]
)
@on_uvloop
async def test_a_failure_is_answered_without_its_cause(user: str, password: str) -> None:
    async with serving() as (listener, port):
        wire = await Wire.open(port)
        answer = await wire.plain(user, password)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
        )
        assert await wire.is_closed()
        await until(lambda: listener.connections == 0)


@on_uvloop
async def test_a_mechanism_that_is_not_enabled_is_named_and_ends_the_connection() -> None:
    async with serving() as (_, port):
        wire = await Wire.open(port)
        answer = await wire.handshake("SCRAM-SHA-512")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["SCRAM-SHA-256", "PLAIN"]
        assert await wire.is_closed()


@on_uvloop
async def test_a_token_without_a_handshake_is_refused() -> None:
    async with serving() as (_, port):
        wire = await Wire.open(port)
        assert (await wire.token(b"\0alice\0secret")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await wire.plain("alice", "secret")).error_code == ErrorCode.NONE


@on_uvloop
async def test_the_main_listener_has_no_sasl() -> None:
    async with serving() as (listener, _):
        wire = await Wire.open(listener.port)
        answer = await wire.handshake("PLAIN")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.whoami() == "User:ANONYMOUS"


@on_uvloop
async def test_large_requests_are_refused_before_the_authentication_only() -> None:
    async with serving() as (_, port):
        large = framed(b"\x00\x00" + bytes(REQUEST_BYTES_MAX))
        wire = await Wire.open(port)
        wire.writer.write(large)
        assert await wire.is_closed()
        wire = await Wire.open(port)
        assert (await wire.plain("alice", "secret")).error_code == ErrorCode.NONE
        request = DescribeClusterRequest()
        header = encode_request_header(ApiKey.DESCRIBE_CLUSTER, 0, 7, "c" * (REQUEST_BYTES_MAX + 1))
        wire.writer.write(framed(header + encode(request, 0)))
        assert await wire.reader.readexactly(4)


@on_uvloop
async def test_a_client_that_does_not_authenticate_in_time_is_disconnected() -> None:
    limits = replace(LIMITS, authentication_ms_max=100)
    async with serving(limits=limits) as (listener, port):
        wire = await Wire.open(port)
        await wire.handshake("PLAIN")
        assert await wire.is_closed()
        await until(lambda: listener.connections == 0)


@on_uvloop
async def test_a_session_that_expired_permits_only_a_new_authentication() -> None:
    async with serving(session_ms_max=400) as (_, port):
        wire = await Wire.open(port)
        assert (await wire.plain("alice", "secret")).session_lifetime_ms == 400
        assert await wire.whoami() == "User:alice"
        await asyncio.sleep(0.5)
        assert (await wire.plain("alice", "secret")).error_code == ErrorCode.NONE
        await asyncio.sleep(0.5)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await wire.whoami()


@on_uvloop
async def test_a_re_authentication_must_keep_user_and_mechanism() -> None:
    async with serving(session_ms_max=60_000) as (_, port):
        wire = await Wire.open(port)
        assert (await wire.plain("alice", "secret")).error_code == ErrorCode.NONE
        assert (await wire.plain("bob", "bob-secret")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.is_closed()
        wire = await Wire.open(port)
        assert (await wire.plain("alice", "secret")).error_code == ErrorCode.NONE
        assert (await wire.handshake("SCRAM-SHA-256")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.is_closed()
