"""The operation that alters SCRAM credentials.

The broker derives the keys, so that a salted password never reaches a controller or the log. Messages name
users and mechanisms, never secrets.
"""

from __future__ import annotations

from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.nouns.scram_credentials import SCRAM_CREDENTIALS, ScramMechanism
from ponor_runtime.identity import TenantId

from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    invalid,
    require_count,
    require_distinct,
    require_role,
)

ALTERATIONS_MAX: Final = 1_000
USER_CHARACTERS_MAX: Final = 256
SALT_BYTES_MAX: Final = 256
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds of the iterations (4.3.1, ScramMechanism and ScramControlManager)."""


def alter_scram_credentials(body: wire.AlterScramCredentials, situation: Situation) -> Decision:
    """Set and remove credentials of distinct users. Each alteration succeeds or fails by itself."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.alterations), ALTERATIONS_MAX, "alterations")
    require_distinct([each.user for each in body.alterations], "user")
    tenant_id = TenantId(body.tenant_id)
    if tenant_id not in situation.view[TENANTS]:
        raise invalid(f"there is no tenant {body.tenant_id!r}; create it first")
    decision = Decision(result=wire.OperationResult())
    answered = decision.result.scram_credentials_altered
    answered.SetInParent()
    count = len(situation.view[SCRAM_CREDENTIALS])
    for alteration in body.alterations:
        key = tenant_id, alteration.user, _mechanism(alteration)
        exists = key in situation.view[SCRAM_CREDENTIALS]
        outcome = answered.outcomes.add()
        if alteration.HasField("secrets"):
            _require_bounds(alteration, key[2])
            if not exists and count >= situation.settings.scram_credentials_max:
                outcome.code = error_pb2.ERROR_CODE_TOO_MANY_CREDENTIALS
                outcome.message = (
                    f"the cluster has {count} SCRAM credentials, the maximum (scram_credentials_max);"
                    " remove those of unused users"
                )
                continue
            count += not exists
            decision.records.append(_set(tenant_id, alteration))
        elif exists:
            count -= 1
            decision.records.append(_removed(tenant_id, alteration))
        else:
            outcome.code = error_pb2.ERROR_CODE_CREDENTIAL_NOT_FOUND
            outcome.message = "the user has no credential for this mechanism"
    return decision


def _mechanism(alteration: wire.ScramAlteration) -> ScramMechanism:
    try:
        return ScramMechanism(alteration.mechanism)
    except ValueError:
        raise invalid(f"the SCRAM mechanism {alteration.mechanism} is unknown") from None


def _require_bounds(alteration: wire.ScramAlteration, mechanism: ScramMechanism) -> None:
    """Check a new credential.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    user, secrets = alteration.user, alteration.secrets
    if not 1 <= len(user) <= USER_CHARACTERS_MAX:
        raise invalid(f"the name of a user has {len(user)} characters; use 1 to {USER_CHARACTERS_MAX}")
    if len(secrets.salt) > SALT_BYTES_MAX:
        raise invalid(
            f"the salt of user {user!r} has {len(secrets.salt)} bytes; use at most {SALT_BYTES_MAX}"
        )
    if not len(secrets.stored_key) == len(secrets.server_key) == mechanism.digest_bytes:
        raise invalid(f"a key of user {user!r} does not have {mechanism.digest_bytes} bytes")
    if not ITERATIONS_MIN <= secrets.iterations <= ITERATIONS_MAX:
        raise invalid(
            f"the credential of user {user!r} has {secrets.iterations} iterations; use {ITERATIONS_MIN}"
            f" to {ITERATIONS_MAX}"
        )


def _set(tenant_id: TenantId, alteration: wire.ScramAlteration) -> records_pb2.Record:
    secrets = alteration.secrets
    credential = records_pb2.ScramCredentialSet(
        tenant_id=tenant_id,
        user=alteration.user,
        mechanism=alteration.mechanism,
        salt=secrets.salt,
        stored_key=secrets.stored_key,
        server_key=secrets.server_key,
        iterations=secrets.iterations,
    )
    return records_pb2.Record(scram_credential_set=credential)


def _removed(tenant_id: TenantId, alteration: wire.ScramAlteration) -> records_pb2.Record:
    removed = records_pb2.ScramCredentialRemoved(
        tenant_id=tenant_id, user=alteration.user, mechanism=alteration.mechanism
    )
    return records_pb2.Record(scram_credential_removed=removed)
