"""Keys of salted passwords, look-ups in the image, and secrets that no text shows."""

from __future__ import annotations

import hmac
from base64 import b64decode
from hashlib import pbkdf2_hmac, sha256

from ponor.metadata.v1.records_pb2 import ScramCredentialSet
from ponor_broker.security.scram_credentials import ScramCredentials, derive_keys
from ponor_kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ponor_kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.scram_credentials import SCRAM_CREDENTIALS, ScramCredentialRow, ScramMechanism
from ponor_runtime.identity import DEFAULT_TENANT, TenantId
from ponor_runtime.turns import at_once

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def credential(user: str, mechanism: ScramMechanism, tenant_id: str = DEFAULT_TENANT) -> ScramCredentialRow:
    key = b"secret-key" * 10
    size = mechanism.digest_bytes
    row = (TenantId(tenant_id), user, mechanism, b"secret-salt", key[:size], key[:size], 4_096)
    return ScramCredentialRow(*row)


def test_the_keys_verify_the_exchange_of_rfc_7677() -> None:
    # RFC 7677, section 3: user "user", password "pencil", 4,096 iterations.
    salted = pbkdf2_hmac("sha256", b"pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4_096)
    keys = derive_keys(SHA_256, salted)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first, server_first = (
        "n=user,r=rOprNGfwEbeRWgbNEkqO",
        f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    )
    message = f"{first},{server_first},c=biws,r={nonce}".encode()
    proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(keys.stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert sha256(client_key).digest() == keys.stored_key
    verifier = b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert hmac.digest(keys.server_key, message, "sha256") == verifier


def test_keys_have_the_size_of_the_digest() -> None:
    for mechanism in ScramMechanism:
        keys = derive_keys(mechanism, b"salted")
        assert len(keys.stored_key) == len(keys.server_key) == mechanism.digest_bytes


def test_look_ups_see_the_present_image_of_their_tenant() -> None:
    images = [MetadataImage(), MetadataImage()]
    table = images[1][SCRAM_CREDENTIALS]
    for row in (
        credential("alice", SHA_512),
        credential("alice", SHA_256),
        credential("bob", SHA_512),
        credential("carol", SHA_256, "another"),
    ):
        table.put(row)
    current = images[0]
    credentials = ScramCredentials(lambda: current)
    assert credentials.find("alice", SHA_256) is None
    current = images[1]
    found = credentials.find("alice", SHA_256)
    assert found is not None
    assert found.salt == b"secret-salt"
    assert [row.mechanism for row in credentials.of_user("alice")] == [SHA_256, SHA_512]
    assert credentials.of_user("carol") == []
    assert credentials.find("bob", SHA_256) is None
    assert at_once(credentials.users()) == ["alice", "bob"]


def test_texts_of_rows_requests_and_keys_hide_secrets() -> None:
    row = credential("alice", SHA_256)
    image = MetadataImage()
    image[SCRAM_CREDENTIALS].put(row)
    upsertion = ScramCredentialUpsertion("alice", 1, 4_096, b"secret-salt", b"secret-password")
    texts = [
        repr(row),
        str(row),
        f"{row}",
        repr(next(iter(image[SCRAM_CREDENTIALS]))),
        repr(AlterUserScramCredentialsRequest(upsertions=[upsertion])),
        repr(SaslAuthenticateRequest(b"\0alice\0secret-password")),
        repr(derive_keys(SHA_256, b"secret-password")),
    ]
    stored = repr(derive_keys(SHA_256, b"secret-password").stored_key)
    assert not [text for text in texts if "secret" in text or stored in text]
    assert all("alice" in text for text in texts[:5])


def test_the_record_marks_its_secrets() -> None:
    fields = ScramCredentialSet.DESCRIPTOR.fields
    marked = {field.name for field in fields if field.GetOptions().debug_redact}
    assert marked == {"salt", "stored_key", "server_key"}
