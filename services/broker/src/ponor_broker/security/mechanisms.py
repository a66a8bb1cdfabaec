"""SASL mechanisms of the listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_metadata.nouns.scram_credentials import ScramMechanism
from ponor_runtime.randomness import Randomness

from ponor_broker.security.authentication import Exchange
from ponor_broker.security.errors import AuthenticationFailedError
from ponor_broker.security.scram import (
    NONCE_BYTES,
    USER_CHARACTERS_MAX,
    ScramExchange,
    sasl_name,
    verify_password,
)
from ponor_broker.security.scram_credentials import ScramCredential

PLAIN: Final = "PLAIN"
SCRAM: Final = {sasl_name(mechanism): mechanism for mechanism in ScramMechanism}
MECHANISMS: Final = (*SCRAM, PLAIN)
PASSWORD_BYTES_MAX: Final = 1_024

FindCredential: TypeAlias = Callable[[str, ScramMechanism], ScramCredential | None]
"""Returns a user's credential for a mechanism; None if there is none."""


class PlainExchange:
    """PLAIN (RFC 4616): one message with user and password.

    The password is compared with the user's SCRAM credential, so one command sets the password for all
    mechanisms.
    """

    def __init__(self, find: FindCredential) -> None:
        self._find = find
        self.user = ""
        self.is_complete = False

    def evaluate(self, token: bytes) -> bytes:
        """Check the password.

        Raises:
            AuthenticationFailedError: the message is malformed, or the password is wrong.
        """
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailedError("the PLAIN message is malformed")
        authorization_id, name, password = parts
        try:
            self.user = name.decode()[: USER_CHARACTERS_MAX + 1]
        except UnicodeDecodeError:
            raise AuthenticationFailedError("the user name is not UTF-8") from None
        if not 1 <= len(self.user) <= USER_CHARACTERS_MAX or len(password) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailedError("the user name or the password is empty or too long")
        if authorization_id not in (b"", name):
            raise AuthenticationFailedError("the authorization id differs from the user")
        for mechanism in ScramMechanism:
            credential = self._find(self.user, mechanism)
            if credential is not None:
                self.is_complete = verify_password(mechanism, credential, password)
                break
        if not self.is_complete:
            raise AuthenticationFailedError("invalid credentials with PLAIN")
        return b""


class ExchangeFactory:
    """Creates the exchanges of one broker."""

    def __init__(self, find: FindCredential, randomness: Randomness) -> None:
        self._find = find
        self._randomness = randomness
        self._secret = randomness.token(32)

    def create(self, name: str) -> Exchange:
        """Begin an exchange with one of `MECHANISMS`."""
        if name == PLAIN:
            return PlainExchange(self._find)
        mechanism = SCRAM[name]
        return ScramExchange(
            mechanism,
            lambda user: self._find(user, mechanism),
            nonce=self._randomness.token(NONCE_BYTES),
            secret=self._secret,
        )
