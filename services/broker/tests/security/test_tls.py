"""TLS of listeners: handshakes over real sockets, certificates that change, principals, pending clients."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ponor_broker.listener.client_protocol import CIPHERTEXT_BYTES
from ponor_broker.listener.kafka_listener import KafkaListener
from ponor_broker.listener.tls_stream import PIECE_BYTES, TlsStream
from ponor_broker.options import ListenerOptions, ListenerProtocol
from ponor_broker.requests.connection import Answer, ConnectionContext
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.security.tls import (
    ClientCertificates,
    PrincipalRule,
    TlsConfigurationError,
    TlsContext,
    TlsOptions,
    distinguished_name,
    principal_of,
)
from ponor_broker.settings import BrokerSettings
from ponor_cli.local.certificates import create_authority, issue_certificate
from ponor_runtime.host_port import split_host_port
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.listener.test_kafka_listener import LIMITS, framed, on_uvloop, until

NOW = datetime.now(UTC)


class Contexts:
    """Echoes frames and keeps the context of each client."""

    def __init__(self) -> None:
        self.seen: list[ConnectionContext] = []

    def dispatch(self, frame: bytearray, connection: ConnectionContext, received_ns: int) -> Answer:
        self.seen.append(connection)
        return [len(frame).to_bytes(4, "big"), frame]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    authority = create_authority("test", NOW)
    authority.write(directory, "ca")
    issue_certificate(authority, "broker", ["localhost", "127.0.0.1"], NOW, days=1).write(directory, "broker")
    issue_certificate(authority, "alice", [], NOW, days=1).write(directory, "alice")
    stranger = create_authority("stranger", NOW)
    issue_certificate(stranger, "mallory", [], NOW, days=1).write(directory, "mallory")
    return directory


def options(files: Path, **more: Any) -> TlsOptions:
    return TlsOptions(files / "broker.pem", files / "broker.key", **more)


def client(files: Path, name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    if name is not None:
        context.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
    return context


@asynccontextmanager
async def serving(
    listener: ListenerOptions, limits: BrokerSettings = LIMITS
) -> AsyncIterator[tuple[KafkaListener, Contexts, int]]:
    contexts = Contexts()
    bound = await KafkaListener.bind(
        "127.0.0.1",
        0,
        limits,
        further=(listener,),
        backlog=AnswerBacklog(1 << 30),
        clock=SystemClock(),
        telemetry=Telemetry(),
        fail_stop=_no_fail_stop,
    )
    await bound.serve(contexts)
    try:
        yield bound, contexts, split_host_port(bound.addresses[listener.name])[1]
    finally:
        await bound.close()


def _no_fail_stop(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


def encrypted(tls: TlsOptions) -> ListenerOptions:
    return ListenerOptions("TLS", ListenerProtocol.SSL, tls=tls, mechanisms=())


@on_uvloop
async def test_large_and_small_requests_over_tls(files: Path) -> None:
    async with serving(encrypted(options(files))) as (listener, contexts, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files))
        for size in (1, 300, 300_000, 3_000_000):
            frame = framed(b"\x00\x00" + os.urandom(size))
            writer.write(frame)
            assert await reader.readexactly(len(frame)) == frame
        assert contexts.seen[0].listener == "TLS"
        assert contexts.seen[0].principal == "User:ANONYMOUS"
        assert not listener._shared.pending
        writer.close()
        await until(lambda: listener.connections == 0)


@on_uvloop
async def test_the_principal_is_the_subject_of_the_client_certificate(files: Path) -> None:
    tls = options(
        files,
        client_ca=files / "ca.pem",
        client_certificates=ClientCertificates.REQUIRED,
        principal_rules=(PrincipalRule.parse("RULE:^CN=(.*)$/$1/U"),),
    )
    async with serving(encrypted(tls)) as (listener, contexts, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files, "alice"))
        writer.write(framed(b"\x00\x00hello"))
        await reader.readexactly(11)
        assert contexts.seen[0].principal == "User:ALICE"
        writer.close()
        for name in (None, "mallory"):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files, name))
                writer.write(framed(b"\x00\x00hello"))
                await reader.readexactly(11)
        assert len(contexts.seen) == 1
        await until(lambda: listener.connections == 0)


@on_uvloop
async def test_a_plaintext_client_at_a_tls_port_is_disconnected(files: Path) -> None:
    async with serving(encrypted(options(files))) as (listener, contexts, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"\x00\x12\x00\x03hello"))
        await reader.read()  # perhaps a TLS alert, then the end
        assert reader.at_eof()
        await until(lambda: listener.connections == 0)
        assert not contexts.seen
        assert not listener._shared.pending
        writer.close()


@on_uvloop
async def test_a_client_that_never_finishes_its_handshake_is_disconnected(files: Path) -> None:
    limits = replace(LIMITS, authentication_ms_max=200)
    async with serving(encrypted(options(files)), limits) as (listener, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02")  # the beginning of a record
        await reader.read()
        assert reader.at_eof()
        await until(lambda: listener.connections == 0 and not listener._shared.pending)
        writer.close()


@on_uvloop
async def test_the_oldest_pending_client_gives_way_to_a_new_one(files: Path) -> None:
    limits = replace(LIMITS, pending_connections_max=3)
    async with serving(encrypted(options(files)), limits) as (listener, _, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(listener._shared.pending) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files))
        writer.write(framed(b"\x00\x00hello"))
        assert await reader.readexactly(11) == framed(b"\x00\x00hello")
        assert await silent[0][0].read() == b""
        await until(lambda: len(listener._shared.pending) == 2)
        for _, each in (*silent, (reader, writer)):
            each.close()
        await until(lambda: listener.connections == 0 and not listener._shared.pending)


@on_uvloop
async def test_a_changed_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    authority = create_authority("test", NOW)
    authority.write(tmp_path, "ca")
    issue_certificate(authority, "broker", ["127.0.0.1"], NOW, days=1).write(tmp_path, "broker")
    async with serving(encrypted(options(tmp_path))) as (listener, _, port):
        old_reader, old = await asyncio.open_connection("127.0.0.1", port, ssl=client(tmp_path))
        before = old.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        successor = issue_certificate(authority, "broker", ["127.0.0.1"], NOW, days=2)
        successor.write(tmp_path, "broker", replace=True)
        assert listener._tls[0].reload()
        _, new = await asyncio.open_connection("127.0.0.1", port, ssl=client(tmp_path))
        assert new.get_extra_info("ssl_object").getpeercert()["serialNumber"] != before
        old.write(framed(b"\x00\x00hello"))
        assert await old_reader.readexactly(11) == framed(b"\x00\x00hello")
        (tmp_path / "broker.pem").write_text("broken")
        assert not listener._tls[0].reload()
        _, third = await asyncio.open_connection("127.0.0.1", port, ssl=client(tmp_path))
        for each in (old, new, third):
            each.close()


@on_uvloop
async def test_reading_continues_only_when_everything_before_a_pause_is_decrypted(files: Path) -> None:
    """Otherwise ciphertext that no budget counts would accumulate."""
    async with serving(encrypted(options(files))) as (listener, contexts, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files))
        frames = [framed(b"\x00\x12" + os.urandom(8_000)) for _ in range(2_000)]
        writer.write(b"".join(frames))
        await until(lambda: bool(listener._shared.connections))
        (protocol,) = listener._shared.connections
        assert protocol._tls is not None
        largest = 0
        received = b""
        while len(contexts.seen) < len(frames):
            largest = max(largest, protocol._tls._incoming.pending)
            received += await reader.read(1 << 16)
        assert largest <= 2 * CIPHERTEXT_BYTES
        expected = b"".join(frames)
        received += await reader.readexactly(len(expected) - len(received))
        assert received == expected
        writer.close()


@on_uvloop
async def test_an_error_of_openssl_while_answering_ends_only_that_connection(files: Path) -> None:
    """As after an unfinished key update, during which OpenSSL writes nothing."""
    async with serving(encrypted(options(files))) as (listener, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files))
        writer.write(framed(b"\x00\x00hello"))
        await reader.readexactly(11)
        (protocol,) = listener._shared.connections
        with patch.object(TlsStream, "encrypt", side_effect=ssl.SSLWantReadError):
            writer.write(framed(b"\x00\x00hello"))
            assert await reader.read() == b""
        await until(lambda: listener.connections == 0)
        assert protocol._transport is None
        writer.close()


@on_uvloop
async def test_records_without_data_are_bounded(files: Path) -> None:
    async with serving(encrypted(options(files))) as (listener, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(files))
        await until(lambda: bool(listener._shared.connections))
        with patch.object(TlsStream, "read_into", return_value=0):
            writer.write(framed(b"\x00\x00" + bytes(200_000)))
            assert await reader.read() == b""
        await until(lambda: listener.connections == 0)
        writer.close()


@on_uvloop
async def test_memory_of_a_large_answer_is_freed(files: Path) -> None:
    context = TlsContext.load(options(files)).context
    stream = TlsStream(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = client(files).wrap_bio(incoming, outgoing, server_hostname="localhost")
    for _ in range(4):
        with suppress(ssl.SSLWantReadError):
            peer.do_handshake()
        stream.received(memoryview(outgoing.read()))
        incoming.write(stream.take_outgoing())
    assert stream.is_open
    pieces = stream.encrypt([os.urandom(1 << 20)])
    assert max(map(len, pieces)) < PIECE_BYTES + 2_000
    assert sum(map(len, pieces)) > 1 << 20


def test_unusable_files_are_named(files: Path, tmp_path: Path) -> None:
    key = tmp_path / "broker.key"
    key.write_bytes((files / "broker.key").read_bytes())
    key.chmod(0o644)
    with pytest.raises(TlsConfigurationError, match=r"every user can access the private key"):
        TlsContext.load(TlsOptions(files / "broker.pem", key))
    with pytest.raises(TlsConfigurationError, match=r"absent\.pem cannot be read: No such file"):
        TlsContext.load(TlsOptions(tmp_path / "absent.pem", files / "broker.key"))
    with pytest.raises(TlsConfigurationError, match="cannot be used"):
        TlsContext.load(TlsOptions(files / "alice.pem", files / "broker.key"))


@on_uvloop
async def test_a_listener_with_an_unusable_certificate_leaves_no_port_bound(files: Path) -> None:
    tls = TlsOptions(files / "alice.pem", files / "broker.key")
    with pytest.raises(StartRefusedError, match="listener TLS: certificate"):
        async with serving(encrypted(tls)):
            pass


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["DEFAULT"], "User:CN=alice,OU=eng,O=x"),
        (["RULE:^CN=(.*?),OU=eng.*$/$1/", "DEFAULT"], "User:alice"),
        (["RULE:^CN=bob$/bobx/", "RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U"], "User:ALICE@ENG"),
    ],
)
def test_principal_rules(rules: list[str], expected: str) -> None:
    certificate = {
        "subject": (
            (("organizationName", "x"),),
            (("organizationalUnitName", "eng"),),
            (("commonName", "alice"),),
        )
    }
    assert principal_of(certificate, [PrincipalRule.parse(rule) for rule in rules]) == expected


def test_a_certificate_without_a_matching_rule_gets_no_principal() -> None:
    certificate = {"subject": ((("commonName", "alice"),),)}
    with pytest.raises(TlsConfigurationError, match="no principal rule matches"):
        principal_of(certificate, [PrincipalRule.parse("RULE:^CN=bob$/bob/")])


@pytest.mark.parametrize(
    "text", ["", "default", "RULE:x", "RULE:(/x/", "RULE:a/b/X", "RULE:^CN=(.*)$/$2/", "RULE:a/\\q/"]
)
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(TlsConfigurationError):
        PrincipalRule.parse(text)


def test_names_are_escaped() -> None:
    assert distinguished_name({"subject": ((("commonName", "a,b=c\\"),),)}) == "CN=a\\,b\\=c\\\\"
