"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ponor_kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ponor_runtime.clock import Clock

from ponor_broker.requests.api_handler import ApiHandler, RequestContext
from ponor_broker.security.authentication import Authentication
from ponor_broker.security.errors import AuthenticationFailedError
from ponor_broker.security.mechanisms import ExchangeFactory

FAILURE_DELAY_S: Final = 0.1
"""Delay of the answer to a failed authentication (Kafka's connection.failed.authentication.delay.ms)."""
SHOWN_CHARACTERS: Final = 64
NS_PER_MS: Final = 1_000_000


class SaslHandlers:
    """Authenticates the clients of listeners with SASL.

    A failed authentication ends the connection after its answer, so each further attempt costs the client a
    new connection and the delay.
    """

    def __init__(self, exchanges: ExchangeFactory, clock: Clock, *, session_ms_max: int) -> None:
        """Serve authentications; with `session_ms_max` above 0, clients must authenticate again after it."""
        self._exchanges = exchanges
        self._clock = clock
        self._session_ms_max = session_ms_max

    def handlers(self) -> list[ApiHandler]:
        """Return both APIs. SaslHandshake 0 is not offered: after it, tokens have no request header."""
        return [
            ApiHandler(ApiKey.SASL_HANDSHAKE, 1, 1, self.handshake),
            ApiHandler(ApiKey.SASL_AUTHENTICATE, 0, 2, self.authenticate),
        ]

    async def handshake(
        self, request: SaslHandshakeRequest, context: RequestContext
    ) -> SaslHandshakeResponse:
        """Choose the mechanism."""
        state = context.connection.authentication
        if state is None or (state.user is not None and not self._session_ms_max):
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if request.mechanism not in state.mechanisms:
            context.connection.ends = (
                f"the SASL mechanism {request.mechanism[:SHOWN_CHARACTERS]!r} is not enabled"
            )
            return SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(state.mechanisms)
            )
        if state.user is not None and request.mechanism != state.mechanism:
            context.connection.ends = "the SASL mechanism of a re-authentication differs from the first"
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        state.begin(request.mechanism, self._exchanges.create(request.mechanism))
        return SaslHandshakeResponse(mechanisms=list(state.mechanisms))

    async def authenticate(
        self, request: SaslAuthenticateRequest, context: RequestContext
    ) -> SaslAuthenticateResponse:
        """Process the next token of the exchange."""
        state = context.connection.authentication
        if state is None or state.exchange is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate must follow a SaslHandshake on a listener with SASL",
                auth_bytes=b"",
            )
        exchange = state.exchange
        try:
            answer = exchange.evaluate(bytes(request.auth_bytes))
            await exchange.finish()
            if exchange.is_complete and state.user not in (None, exchange.user):
                raise AuthenticationFailedError("a re-authentication must not change the user")
        except AuthenticationFailedError as error:
            return await self._failed(state, error, context)
        lifetime_ms = 0
        if exchange.is_complete:
            lifetime_ms = self._session_ms_max
            expires_ns = self._clock.monotonic_ns() + lifetime_ms * NS_PER_MS if lifetime_ms else None
            state.complete(exchange.user, expires_ns)
            context.connection.principal = f"User:{exchange.user}"
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    async def _failed(
        self, state: Authentication, error: AuthenticationFailedError, context: RequestContext
    ) -> SaslAuthenticateResponse:
        exchange, state.exchange = state.exchange, None
        assert exchange is not None
        context.connection.ends = (
            f"authentication of user {exchange.user[:SHOWN_CHARACTERS]!r} failed: {error}"
        )
        await self._clock.sleep(FAILURE_DELAY_S)
        # As in Kafka, the answer does not reveal the cause: an unknown user and a wrong password are equal.
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism"
                f" {state.mechanism}"
            ),
            auth_bytes=b"",
        )
