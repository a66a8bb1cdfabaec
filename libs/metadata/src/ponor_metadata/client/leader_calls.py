"""Calls to the leading controller, used by the clients of all services for tools.

Requests can be repeated safely, so a request without an answer is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from ponor.common.v1 import error_pb2
from ponor_rpc.errors import RETRY_SAME_OPERATION, OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.network import ConnectionClosedError, Network

from ponor_metadata.client.controllers import KnownControllers

RETRY_S: Final = 0.1


class Response(Protocol):
    """A response message with a oneof `outcome` that contains `error`."""

    @property
    def error(self) -> error_pb2.Error: ...

    def SerializeToString(self) -> bytes: ...  # noqa: N802 -- protobuf's name


R = TypeVar("R", bound=Response)


class NoControllerError(Exception):
    """No controller answered in time."""


class LeaderCalls(Generic[R]):
    """Sends requests to `addresses` (HOST:PORT of controllers' services) and to the leaders that the
    controllers name.

    With the `KnownControllers` of a subscription, calls also work after all configured controllers were
    replaced.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        addresses: Sequence[str] | KnownControllers,
        method: str,
        decode: Callable[[bytes], R],
    ) -> None:
        self._network = network
        self._clock = clock
        self._known = addresses if isinstance(addresses, KnownControllers) else KnownControllers(addresses)
        self._method = method
        self._decode = decode

    async def ask(self, frame: bytes, *, answer_s_max: float, timeout_s: float) -> R:
        """Return the answer of the leader, or of any controller if the service allows that.

        Args:
            frame: the request.
            answer_s_max: how long one controller may take to answer. After that the call tries another
                controller, because this one may be partitioned.
            timeout_s: time limit of all attempts together.

        Raises:
            OperationError: the request was refused; a retry would not help.
            NoControllerError: no answer within `timeout_s`; the message contains the last reason.
        """
        hint: str | None = None
        reason = "no controller was reached"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    addresses = self._known.all
                    for address in (hint, *addresses) if hint else addresses:
                        response, reason = await self._ask_at(address, frame, answer_s_max)
                        if response is None:
                            continue
                        error = response.error
                        if error.code == error_pb2.ERROR_CODE_UNSPECIFIED:
                            return response
                        if error.code not in RETRY_SAME_OPERATION:
                            raise OperationError.from_proto(error)
                        hint, reason = error.leader_address or None, error.message
                        if hint is not None and hint != address:
                            break
                    await self._clock.sleep(RETRY_S)
        except TimeoutError as error:
            where = ", ".join(self._known.all)
            raise NoControllerError(f"no answer from the controllers at {where}: {reason}") from error

    async def _ask_at(self, address: str, frame: bytes, answer_s_max: float) -> tuple[R | None, str]:
        try:
            connection = await self._network.connect(address, self._method)
        except ConnectionClosedError as error:
            return None, str(error) or f"{address} cannot be reached"
        try:
            async with asyncio.timeout(answer_s_max):
                await connection.send(frame)
                return self._decode(await connection.receive()), ""
        except ConnectionClosedError as error:
            return None, str(error) or f"{address} closed the connection"
        except TimeoutError:
            return None, f"{address} does not answer"
        finally:
            await connection.close()
