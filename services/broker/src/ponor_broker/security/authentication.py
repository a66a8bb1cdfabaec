"""Authentication state of one connection, which the dispatcher checks before each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ponor_kafka.api import ApiKey

ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a client that did not authenticate, as in Kafka."""
REQUEST_BYTES_MAX: Final = 8 << 10
"""Largest request of a client that is not authenticated."""
_KEY_BYTES: Final = 2
_PERMITTED: Final = frozenset(
    int(key).to_bytes(_KEY_BYTES, "big")
    for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
)


class Exchange(Protocol):
    """The server side of one SASL exchange."""

    @property
    def user(self) -> str:
        """The claimed user."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the user is authenticated."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to a token.

        Raises:
            AuthenticationFailedError: authentication failed.
        """
        ...

    async def finish(self) -> None:
        """Do the part of the last evaluation that takes too long for the event loop.

        Raises:
            AuthenticationFailedError: authentication failed.
        """
        ...


class Authentication:
    """State of a connection at a SASL listener.

    Attributes:
        mechanisms: names of the enabled mechanisms.
        mechanism: the mechanism of the last handshake; None before it.
        exchange: the exchange in progress; None outside of one.
        user: the authenticated user; None before.
    """

    __slots__ = ("_expires_ns", "_opened", "exchange", "mechanism", "mechanisms", "user")

    def __init__(self, mechanisms: tuple[str, ...], opened: Callable[[], None]) -> None:
        """Begin without an authenticated user; `opened` is called once, when the user is authenticated."""
        self.mechanisms = mechanisms
        self.mechanism: str | None = None
        self.exchange: Exchange | None = None
        self.user: str | None = None
        self._opened = opened
        self._expires_ns: int | None = None

    def permits(self, frame: bytearray, now_ns: int) -> bool:
        """Return whether a request may be handled: any while the session lasts, otherwise only those that
        authenticate.
        """
        if self.user is not None and (self._expires_ns is None or now_ns < self._expires_ns):
            return True
        return bytes(frame[:_KEY_BYTES]) in _PERMITTED

    def begin(self, mechanism: str, exchange: Exchange) -> None:
        """Begin an exchange; a running one is dropped."""
        self.mechanism, self.exchange = mechanism, exchange

    def complete(self, user: str, expires_ns: int | None) -> None:
        """Record the authenticated user, and the monotonic time at which the session ends."""
        is_first = self.user is None
        assert is_first or self.user == user, "a connection cannot change its user"
        self.user, self._expires_ns, self.exchange = user, expires_ns, None
        if is_first:
            self._opened()
