"""SCRAM credentials in the metadata image, and the keys that a salted password determines (RFC 5802)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ponor_metadata.nouns.scram_credentials import SCRAM_CREDENTIALS, ScramCredentialRow, ScramMechanism
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import DEFAULT_TENANT, TenantId
from ponor_runtime.turns import Steps

ScramCredential: TypeAlias = ScramCredentialRow
_DIGESTS: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
_ROWS_PER_STEP: Final = 500


class ScramKeys(NamedTuple):
    """What a server stores instead of a salted password."""

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "ScramKeys([hidden])"


def digest_name(mechanism: ScramMechanism) -> str:
    """Return the name of a mechanism's hash function."""
    return _DIGESTS[mechanism]


def derive_keys(mechanism: ScramMechanism, salted_password: bytes) -> ScramKeys:
    """Derive the keys of a salted password."""
    digest = _DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return ScramKeys(
        hashlib.new(digest, client_key).digest(), hmac.digest(salted_password, b"Server Key", digest)
    )


class ScramCredentials:
    """The credentials of one tenant's users. `image` is called at every look-up, because a subscription may
    replace it.
    """

    def __init__(self, image: Callable[[], View], tenant_id: TenantId = DEFAULT_TENANT) -> None:
        self._image = image
        self.tenant_id = tenant_id

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the credential of a user for a mechanism."""
        return self._image()[SCRAM_CREDENTIALS].get((self.tenant_id, user, mechanism))

    def of_user(self, user: str) -> list[ScramCredential]:
        """Return all credentials of a user, in the order of the mechanisms."""
        found = (self.find(user, mechanism) for mechanism in ScramMechanism)
        return [credential for credential in found if credential is not None]

    def users(self) -> Steps[list[str]]:
        """Return the names of all users with a credential, sorted."""
        users: dict[str, None] = {}
        for number, row in enumerate(self._image()[SCRAM_CREDENTIALS], start=1):
            if row.tenant_id == self.tenant_id:
                users[row.user] = None
            if number % _ROWS_PER_STEP == 0:
                yield
        return list(users)
