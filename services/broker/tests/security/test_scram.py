"""SCRAM and PLAIN: an independent client, and hostile messages."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac

import pytest
from ponor_broker.security.errors import AuthenticationFailedError
from ponor_broker.security.mechanisms import ExchangeFactory, PasswordChecks, PlainExchange
from ponor_broker.security.scram import ScramExchange, verify_password
from ponor_broker.security.scram_credentials import ScramCredential, ScramKeys, derive_keys, digest_name
from ponor_metadata.nouns.scram_credentials import ScramCredentialRow, ScramMechanism
from ponor_runtime.identity import DEFAULT_TENANT
from ponor_runtime.system import SystemRandomness

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def credential(mechanism: ScramMechanism, password: str, iterations: int = 4096) -> ScramCredential:
    salt = b"salt of the user"
    salted = pbkdf2_hmac(digest_name(mechanism), password.encode(), salt, iterations)
    keys = derive_keys(mechanism, salted)
    return _row(mechanism, salt, iterations, keys)


def _row(mechanism: ScramMechanism, salt: bytes, iterations: int, keys: ScramKeys) -> ScramCredential:
    return ScramCredentialRow(
        DEFAULT_TENANT, "user", mechanism, salt, keys.stored_key, keys.server_key, iterations
    )


def begin(mechanism: ScramMechanism, users: dict[str, ScramCredential]) -> ScramExchange:
    return ScramExchange(mechanism, users.get, nonce=b"n" * 24, secret=b"s" * 32)


class Client:
    """The client's side, written from RFC 5802."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self.digest = digest_name(mechanism)
        self.user = user.replace("=", "=3D").replace(",", "=2C")
        self.password = password
        self.bare = f"n={self.user},r=client-nonce"

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, answer: bytes, header: str = "n,,", nonce: str | None = None) -> bytes:
        values = dict(part.split("=", 1) for part in answer.decode().split(","))
        salted = pbkdf2_hmac(self.digest, self.password.encode(), b64decode(values["s"]), int(values["i"]))
        client_key = hmac.digest(salted, b"Client Key", self.digest)
        stored_key = new_hash(self.digest, client_key).digest()
        without = f"c={b64encode(header.encode()).decode()},r={nonce or values['r']}"
        message = f"{self.bare},{answer.decode()},{without}".encode()
        signature = hmac.digest(stored_key, message, self.digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.digest)
        self.verifier = b"v=" + b64encode(hmac.digest(server_key, message, self.digest))
        return f"{without},p={b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("user", ["alice", "a,b=c", "ünï"])
def test_the_right_password_is_accepted(mechanism: ScramMechanism, user: str) -> None:
    exchange = begin(mechanism, {user: credential(mechanism, "secret")})
    client = Client(mechanism, user, "secret")
    answer = exchange.evaluate(client.first())
    verifier = exchange.evaluate(client.final(answer))
    assert exchange.is_complete
    assert exchange.user == user
    assert verifier == client.verifier


def test_the_example_of_rfc_7677() -> None:
    nonce = b64decode(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".hex().encode())
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = derive_keys(SHA_256, pbkdf2_hmac("sha256", b"pencil", salt, 4096))
    exchange = ScramExchange(
        SHA_256,
        {"user": _row(SHA_256, salt, 4096, keys)}.get,
        nonce=nonce,
        secret=b"",
    )
    exchange._nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = exchange.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = exchange.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("mallory", "secret")])
def test_a_wrong_password_and_an_unknown_user_fail_alike(user: str, password: str) -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    client = Client(SHA_256, user, password)
    answer = exchange.evaluate(client.first())
    assert answer.endswith(b",i=4096")
    with pytest.raises(AuthenticationFailedError, match="invalid credentials with SCRAM-SHA-256"):
        exchange.evaluate(client.final(answer))
    assert not exchange.is_complete


def test_the_salt_of_an_unknown_user_does_not_change() -> None:
    first = [begin(SHA_256, {}).evaluate(b"n,,n=mallory,r=x") for _ in range(2)]
    assert first[0] == first[1]
    assert first[0] != begin(SHA_256, {}).evaluate(b"n,,n=mallory2,r=x")


def test_a_nonce_that_only_begins_with_the_servers_is_refused() -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    client = Client(SHA_256, "alice", "secret")
    answer = exchange.evaluate(client.first())
    nonce = answer.decode().split(",")[0][2:]
    with pytest.raises(AuthenticationFailedError, match="nonce"):
        exchange.evaluate(client.final(answer, nonce=nonce + "x"))


def test_another_channel_binding_is_refused() -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    client = Client(SHA_256, "alice", "secret")
    answer = exchange.evaluate(client.first())
    with pytest.raises(AuthenticationFailedError, match="channel binding"):
        exchange.evaluate(client.final(answer, header="y,,"))


def test_a_complete_exchange_accepts_no_further_message() -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    client = Client(SHA_256, "alice", "secret")
    final = client.final(exchange.evaluate(client.first()))
    exchange.evaluate(final)
    with pytest.raises(AuthenticationFailedError, match="complete"):
        exchange.evaluate(final)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=,r=x",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"n,,r=x,n=alice",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"n,,n=ali=4Ace,r=x",
        b"n,,n=" + b"a" * 257 + b",r=x",
        b"n,,n=alice,r=" + b"x" * 513,
        b"n,,n=alice,r=x,tokenauth=true",
    ],
)
def test_malformed_first_messages_are_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        begin(SHA_256, {"alice": credential(SHA_256, "secret")}).evaluate(token)


@pytest.mark.parametrize("token", [b"", b"x", b"c=biws,p=AAAA", b"c=biws,r=x,p=!!!", b",,,p=", b"\xff"])
def test_malformed_final_messages_are_refused(token: bytes) -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    exchange.evaluate(Client(SHA_256, "alice", "secret").first())
    with pytest.raises(AuthenticationFailedError):
        exchange.evaluate(token)
    assert not exchange.is_complete


@pytest.mark.parametrize("proof", ["", "!!!", "é", "AAAA", "A"])
def test_malformed_proofs_are_refused(proof: str) -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    client = Client(SHA_256, "alice", "secret")
    without, _, _ = client.final(exchange.evaluate(client.first())).rpartition(b",p=")
    with pytest.raises(AuthenticationFailedError):
        exchange.evaluate(without + b",p=" + proof.encode())
    assert not exchange.is_complete


def test_proofs_of_another_length_are_refused() -> None:
    exchange = begin(SHA_256, {"alice": credential(SHA_256, "secret")})
    client = Client(SHA_256, "alice", "secret")
    without, _, proof = client.final(exchange.evaluate(client.first())).rpartition(b",p=")
    longer = b64encode(b64decode(proof) + b"\0")
    with pytest.raises(AuthenticationFailedError, match="invalid credentials"):
        exchange.evaluate(without + b",p=" + longer)


def find(user: str, mechanism: ScramMechanism) -> ScramCredential | None:
    return credential(SHA_512, "secret") if user == "alice" and mechanism is SHA_512 else None


async def plain(token: bytes) -> PlainExchange:
    exchange = PlainExchange(find, PasswordChecks(), b"s" * 32)
    assert exchange.evaluate(token) == b""
    assert not exchange.is_complete
    await exchange.finish()
    return exchange


async def test_plain_compares_with_the_scram_credential() -> None:
    assert verify_password(SHA_512, credential(SHA_512, "secret"), b"secret")
    exchange = await plain(b"\0alice\0secret")
    assert exchange.is_complete
    assert exchange.user == "alice"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice\0secret",
        b"\0alice\0wrong",
        b"\0mallory\0secret",
        b"bob\0alice\0secret",
        b"\0\0secret",
        b"\0alice\0",
        b"\0alice\0secret\0",
        b"\0\xff\0secret",
        b"\0alice\0" + b"x" * 2_000,
        b"\0" + b"a" * 3_000 + b"\0secret",
    ],
)
async def test_plain_refuses_everything_else(token: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        await plain(token)


def test_the_factory_creates_each_mechanism_with_a_new_nonce() -> None:
    factory = ExchangeFactory(find, SystemRandomness())
    assert isinstance(factory.create("PLAIN"), PlainExchange)
    answers = {factory.create("SCRAM-SHA-512").evaluate(b"n,,n=alice,r=x") for _ in range(3)}
    assert len(answers) == 3
