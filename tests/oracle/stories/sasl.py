"""SASL at a listener without it."""

from __future__ import annotations

from ponor_kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from ponor_kafka.messages.sasl_handshake import SaslHandshakeRequest

from tests.oracle.narrator import Narrator
from tests.oracle.story import story


@story("a client authenticates at a listener without SASL")
def sasl_without_need(k: Narrator) -> None:
    k.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, "mechanism")
    for version in range(3):
        k.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), version, "token")
