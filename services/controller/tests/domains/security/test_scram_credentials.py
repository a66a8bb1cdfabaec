"""SCRAM credentials: set, replaced and removed for several users in one operation; bounds."""

from __future__ import annotations

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.security.scram_credentials import ALTERATIONS_MAX
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.scram_credentials import SCRAM_CREDENTIALS, ScramMechanism
from ponor_runtime.identity import DEFAULT_TENANT

from services.controller.tests.ledger import Ledger

SHA_256, SHA_512 = records_pb2.SCRAM_MECHANISM_SHA_256, records_pb2.SCRAM_MECHANISM_SHA_512


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(settings=ControllerSettings(scram_credentials_max=3))


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


def setting(
    user: str,
    mechanism: records_pb2.ScramMechanism.ValueType = SHA_256,
    *,
    salt: bytes = b"salt",
    key_bytes: int = 0,
    iterations: int = 4_096,
) -> wire.ScramAlteration:
    key = b"k" * (key_bytes or (32 if mechanism == SHA_256 else 64))
    secrets = wire.ScramSecrets(salt=salt, stored_key=key, server_key=key, iterations=iterations)
    return wire.ScramAlteration(user=user, mechanism=mechanism, secrets=secrets)


def removal(user: str, mechanism: records_pb2.ScramMechanism.ValueType = SHA_256) -> wire.ScramAlteration:
    return wire.ScramAlteration(user=user, mechanism=mechanism)


def body(*alterations: wire.ScramAlteration, tenant_id: str = "") -> wire.AlterScramCredentials:
    return wire.AlterScramCredentials(tenant_id=tenant_id, alterations=alterations)


def alter(ledger: Ledger, broker: Caller, *alterations: wire.ScramAlteration) -> list[str]:
    """Return the codes of the outcomes; empty: success."""
    result = ledger.do(broker, alter_scram_credentials=body(*alterations))
    validate(ledger.image)
    return [
        error_pb2.ErrorCode.Name(each.code).removeprefix("ERROR_CODE_") if each.code else ""
        for each in result.scram_credentials_altered.outcomes
    ]


def held(ledger: Ledger) -> list[tuple[str, int, int]]:
    return [(row.user, int(row.mechanism), row.iterations) for row in ledger.image[SCRAM_CREDENTIALS]]


def test_both_mechanisms_of_a_user_coexist_and_are_replaced_and_removed(
    ledger: Ledger, broker: Caller
) -> None:
    assert alter(ledger, broker, setting("alice"), setting("bob", SHA_512)) == ["", ""]
    assert alter(ledger, broker, setting("alice", SHA_512, iterations=8_192)) == [""]
    assert held(ledger) == [("alice", 1, 4_096), ("alice", 2, 8_192), ("bob", 2, 4_096)]
    assert alter(ledger, broker, setting("alice", iterations=16_384, salt=b"new")) == [""]
    row = ledger.image[SCRAM_CREDENTIALS].get((DEFAULT_TENANT, "alice", ScramMechanism.SHA_256))
    assert row is not None
    assert (row.salt, row.stored_key, row.server_key, row.iterations) == (
        b"new",
        b"k" * 32,
        b"k" * 32,
        16_384,
    )
    assert alter(ledger, broker, removal("alice", SHA_512), removal("bob", SHA_512)) == ["", ""]
    assert held(ledger) == [("alice", 1, 16_384)]


def test_a_removal_of_nothing_fails_without_stopping_the_others(ledger: Ledger, broker: Caller) -> None:
    missing = "CREDENTIAL_NOT_FOUND"
    assert alter(ledger, broker, removal("unknown"), setting("alice")) == [missing, ""]
    assert alter(ledger, broker, removal("alice", SHA_512)) == [missing]
    assert held(ledger) == [("alice", 1, 4_096)]


def test_credentials_are_limited_and_a_removal_makes_room(ledger: Ledger, broker: Caller) -> None:
    full = "TOO_MANY_CREDENTIALS"
    wanted = [setting(user) for user in ("a", "b", "c", "d")]
    assert alter(ledger, broker, *wanted) == ["", "", "", full]
    assert alter(ledger, broker, setting("a", iterations=5_000)) == [""], "a replacement needs no room"
    assert alter(ledger, broker, removal("a"), setting("d"), setting("e")) == ["", "", full]


def test_invalid_operations_are_refused(ledger: Ledger, broker: Caller) -> None:
    def refusal(*alterations: wire.ScramAlteration, tenant_id: str = "") -> str:
        return ledger.refusal(broker, alter_scram_credentials=body(*alterations, tenant_id=tenant_id))

    assert {
        refusal(),
        refusal(setting("alice"), removal("alice", SHA_512)),
        refusal(*(setting(f"user {n}") for n in range(ALTERATIONS_MAX + 1))),
        refusal(setting("alice"), tenant_id="unknown"),
        refusal(setting("")),
        refusal(setting("x" * 257)),
        refusal(setting("alice", records_pb2.SCRAM_MECHANISM_UNSPECIFIED)),
        refusal(removal("alice", 3)),  # type: ignore[arg-type]
        refusal(setting("alice", salt=b"s" * 257)),
        refusal(setting("alice", SHA_512, key_bytes=32)),
        refusal(setting("alice", SHA_256, key_bytes=64)),
        refusal(setting("alice", iterations=4_095)),
        refusal(setting("alice", iterations=16_385)),
    } == {"INVALID_REQUEST"}
    compactor = ledger.register(5, records_pb2.NODE_ROLE_COMPACTOR)
    assert ledger.refusal(compactor, alter_scram_credentials=body(setting("alice"))) == "INVALID_REQUEST"
    assert held(ledger) == []
