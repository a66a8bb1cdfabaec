"""Messages of clients that are not authenticated: SASL tokens and TLS records."""

from __future__ import annotations

import ssl
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from ponor_broker.listener.tls_stream import TlsStream
from ponor_broker.security.mechanisms import PasswordChecks, PlainExchange
from ponor_broker.security.scram import ScramExchange
from ponor_broker.security.tls import TlsContext, TlsOptions
from ponor_cli.local.certificates import create_authority, issue_certificate
from ponor_metadata.nouns.scram_credentials import ScramMechanism

FIRST: Final = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL: Final = b"c=biws,r=rOprNGfwEbeRWgbNEkqObm5u,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
PLAINTEXT: Final = memoryview(bytearray(1 << 16))


def first_message(data: bytes) -> None:
    """Evaluate as the first message of SCRAM."""
    _scram().evaluate(data)


def final_message(data: bytes) -> None:
    """Evaluate as the final message of SCRAM. No mutation may be accepted: the user does not exist."""
    exchange = _scram()
    exchange.evaluate(FIRST)
    exchange.evaluate(data)
    raise AssertionError("a user that does not exist was authenticated")


def plain_message(data: bytes) -> None:
    """Parse as the message of PLAIN."""
    exchange = PlainExchange(lambda _user, _mechanism: None, PasswordChecks(), b"s" * 32)
    exchange.evaluate(data)
    assert not exchange.is_complete


def client_hello() -> bytes:
    """Return the first bytes of a client's handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def tls_records(data: bytes) -> None:
    """Feed a new TLS connection. A mutation never gets beyond the handshake."""
    stream = TlsStream(_server())
    stream.received(memoryview(data))
    assert not stream.is_open
    stream.take_outgoing()


def _scram() -> ScramExchange:
    return ScramExchange(ScramMechanism.SHA_256, lambda _: None, nonce=b"nnn", secret=b"s" * 32)


@cache
def _server() -> ssl.SSLContext:
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        issue_certificate(create_authority("fuzz", now), "broker", ["localhost"], now, days=1).write(
            directory, "broker"
        )
        return TlsContext.load(TlsOptions(directory / "broker.pem", directory / "broker.key")).context
