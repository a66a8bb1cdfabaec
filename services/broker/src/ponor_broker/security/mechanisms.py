"""SASL mechanisms of the listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeAlias

from ponor_metadata.nouns.scram_credentials import ScramMechanism
from ponor_runtime.randomness import Randomness

from ponor_broker.security.authentication import Exchange
from ponor_broker.security.errors import AuthenticationFailedError
from ponor_broker.security.scram import (
    NONCE_BYTES,
    USER_CHARACTERS_MAX,
    ScramExchange,
    no_credential,
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


class PasswordChecks:
    """Compares passwords with credentials in a thread, one at a time: a check takes 1 to 13 ms."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def verify(self, mechanism: ScramMechanism, credential: ScramCredential, password: bytes) -> bool:
        """Return whether the password is the one of the credential."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "password checks")
        check = partial(verify_password, mechanism, credential, password)
        return await asyncio.get_running_loop().run_in_executor(self._thread, check)


class PlainExchange:
    """PLAIN (RFC 4616): one message with user and password.

    The password is compared with the user's SCRAM credential, so one command sets the password for all
    mechanisms. An unknown user costs the same check.
    """

    def __init__(self, find: FindCredential, checks: PasswordChecks, secret: bytes) -> None:
        self._find = find
        self._checks = checks
        self._secret = secret
        self._password = b""
        self.user = ""
        self.is_complete = False

    def evaluate(self, token: bytes) -> bytes:
        """Parse the message; `finish` checks the password.

        Raises:
            AuthenticationFailedError: the message is malformed.
        """
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailedError("the PLAIN message is malformed")
        authorization_id, name, self._password = parts
        try:
            self.user = name.decode()[: USER_CHARACTERS_MAX + 1]
        except UnicodeDecodeError:
            raise AuthenticationFailedError("the user name is not UTF-8") from None
        if not (
            1 <= len(self.user) <= USER_CHARACTERS_MAX and 1 <= len(self._password) <= PASSWORD_BYTES_MAX
        ):
            raise AuthenticationFailedError("the password is empty or too long")
        if authorization_id not in (b"", name):
            raise AuthenticationFailedError("the authorization id differs from the user")
        return b""

    async def finish(self) -> None:
        """Check the password.

        Raises:
            AuthenticationFailedError: the user is unknown, or the password is wrong.
        """
        found = ((mechanism, self._find(self.user, mechanism)) for mechanism in ScramMechanism)
        known = next(((mechanism, one) for mechanism, one in found if one is not None), None)
        mechanism = ScramMechanism.SHA_512
        credential = no_credential(mechanism, self._secret, self.user)
        if known is not None:
            mechanism, credential = known
        is_right = await self._checks.verify(mechanism, credential, self._password)
        self._password = b""
        if known is None or not is_right:
            raise AuthenticationFailedError("invalid credentials with PLAIN")
        self.is_complete = True


class ExchangeFactory:
    """Creates the exchanges of one broker."""

    def __init__(self, find: FindCredential, randomness: Randomness) -> None:
        self._find = find
        self._randomness = randomness
        self._secret = randomness.token(32)
        self._checks = PasswordChecks()

    def create(self, name: str) -> Exchange:
        """Begin an exchange with one of `MECHANISMS`."""
        if name == PLAIN:
            return PlainExchange(self._find, self._checks, self._secret)
        mechanism = SCRAM[name]
        return ScramExchange(
            mechanism,
            lambda user: self._find(user, mechanism),
            nonce=self._randomness.token(NONCE_BYTES),
            secret=self._secret,
        )
