"""Server side of SCRAM (RFC 5802, RFC 7677, KIP-84), without I/O.

The broker stores a salt, an iteration count and two keys per user and mechanism, never a password. An unknown
user gets a salt that is derived from its name, so that the first answer does not reveal whether the user
exists.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from typing import Final

from ponor_metadata.nouns.scram_credentials import ScramCredentialRow, ScramMechanism
from ponor_runtime.identity import DEFAULT_TENANT

from ponor_broker.security.errors import AuthenticationFailedError
from ponor_broker.security.scram_credentials import ScramCredential, derive_keys, digest_name

UNKNOWN_USER_ITERATIONS: Final = 4_096
NONCE_BYTES: Final = 24
NONCE_CHARACTERS_MAX: Final = 512
USER_CHARACTERS_MAX: Final = 256
_GS2_FLAGS: Final = ("n", "y")
"""The client does not support channel binding, or believes that the server does not."""


def sasl_name(mechanism: ScramMechanism) -> str:
    """Return the name of a mechanism in SASL."""
    return mechanism.name.replace("SHA_", "SCRAM-SHA-")


def verify_password(mechanism: ScramMechanism, credential: ScramCredential, password: bytes) -> bool:
    """Return whether the password is the one of the credential. Takes about 1 ms per 1,500 iterations."""
    salted = pbkdf2_hmac(digest_name(mechanism), password, credential.salt, credential.iterations)
    return hmac.compare_digest(derive_keys(mechanism, salted).stored_key, credential.stored_key)


def no_credential(mechanism: ScramMechanism, secret: bytes, user: str) -> ScramCredential:
    """Return a credential that stands for an unknown user. No proof matches its keys."""
    salt = hmac.digest(secret, user.encode(), "sha256")
    key = hmac.digest(secret, salt, digest_name(mechanism))
    return ScramCredentialRow(DEFAULT_TENANT, user, mechanism, salt, key, key, UNKNOWN_USER_ITERATIONS)


class ScramExchange:
    """One exchange: `evaluate` the client's first message, then its final message."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        nonce: bytes,
        secret: bytes,
    ) -> None:
        """Begin an exchange.

        Args:
            mechanism: the mechanism of the handshake.
            find: returns the credential of a user for this mechanism.
            nonce: `NONCE_BYTES` random bytes, used for this exchange only.
            secret: random bytes of this process; the salts of unknown users depend on them.
        """
        self._mechanism = mechanism
        self._find = find
        self._nonce = b64encode(nonce).decode()
        self._secret = secret
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._gs2_header = ""
        self._messages = ""
        self.user = ""
        """The claimed user; authenticated only when `is_complete`."""
        self.is_complete = False

    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to the client's next message.

        Raises:
            AuthenticationFailedError: the message is malformed, or the proof is wrong.
        """
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailedError("a SCRAM message is not UTF-8") from None
        if self._credential is None:
            return self._first(text)
        if self.is_complete:
            raise AuthenticationFailedError("the SCRAM exchange is complete already")
        return self._final(text)

    async def finish(self) -> None:
        """Do nothing: the client does the expensive part of SCRAM."""

    def _first(self, text: str) -> bytes:
        parts = text.split(",")
        if len(parts) < 4 or parts[0] not in _GS2_FLAGS or not parts[2].startswith("n="):
            raise AuthenticationFailedError("the first SCRAM message is malformed")
        authorization_id, attributes = parts[1], parts[2:]
        if not attributes[1].startswith("r=") or not 1 <= len(attributes[1]) - 2 <= NONCE_CHARACTERS_MAX:
            raise AuthenticationFailedError("the first SCRAM message has no valid nonce")
        self.user = _unescape(attributes[0][2:])
        if authorization_id not in ("", f"a={attributes[0][2:]}"):
            raise AuthenticationFailedError("the authorization id differs from the user")
        if "tokenauth=true" in attributes[2:]:
            raise AuthenticationFailedError("delegation tokens are not supported")
        credential = self._find(self.user)
        self._is_known = credential is not None
        self._credential = credential or no_credential(self._mechanism, self._secret, self.user)
        self._gs2_header = f"{parts[0]},{authorization_id},"
        self._nonce = attributes[1][2:] + self._nonce
        salt = b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{','.join(attributes)},{answer}"
        return answer.encode()

    def _final(self, text: str) -> bytes:
        credential = self._credential
        assert credential is not None
        without_proof, separator, proof = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if not separator or len(attributes) < 2:
            raise AuthenticationFailedError("the final SCRAM message is malformed")
        header = b64encode(self._gs2_header.encode()).decode()
        if not hmac.compare_digest(attributes[0].encode(), f"c={header}".encode()):
            raise AuthenticationFailedError("the SCRAM channel binding differs from the first message")
        # A nonce that only begins with ours would allow replays (CVE-2024-56128).
        if not hmac.compare_digest(attributes[1].encode(), f"r={self._nonce}".encode()):
            raise AuthenticationFailedError("the SCRAM nonce differs from the server's")
        message = f"{self._messages},{without_proof}".encode()
        digest = digest_name(self._mechanism)
        signature = hmac.digest(credential.stored_key, message, digest)
        try:
            claimed = b64decode(proof, validate=True)
        except ValueError:
            raise AuthenticationFailedError("the SCRAM proof is not base64") from None
        client_key = bytes(a ^ b for a, b in zip(claimed, signature, strict=False))
        is_right = hmac.compare_digest(new_hash(digest, client_key).digest(), credential.stored_key)
        if len(claimed) != len(signature) or not is_right or not self._is_known:
            raise AuthenticationFailedError(f"invalid credentials with {sasl_name(self._mechanism)}")
        self.is_complete = True
        verifier = hmac.digest(credential.server_key, message, digest)
        return f"v={b64encode(verifier).decode()}".encode()


def _unescape(name: str) -> str:
    """Decode a user name, in which =2C is a comma and =3D is an equals sign."""
    if not 1 <= len(name) <= USER_CHARACTERS_MAX:
        raise AuthenticationFailedError(f"a user name must have 1 to {USER_CHARACTERS_MAX} characters")
    decoded = name.replace("=2C", ",").replace("=3D", "=")
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        raise AuthenticationFailedError("the user name has an invalid escape")
    return decoded
