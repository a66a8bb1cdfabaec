"""Asks the controllers about their quorum, or to change it: one question, one answer, whoever leads.

What lives here: finding a controller that answers. Every change is idempotent at the controller (adding a learner that is there is success), so a question
whose answer was lost is simply asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_rpc.errors import RETRY_SAME_OPERATION, OperationError
from ponor_rpc.methods import QUORUM
from ponor_runtime.clock import Clock
from ponor_runtime.network import ConnectionClosedError, Network

from ponor_metadata.controllers import KnownControllers

CHANGE_S_MAX: Final = 10.0
"""One controller's answer to a change: it has to be committed, and a learner may have to catch up before."""
LOOK_S_MAX: Final = 2.0
"""One controller's answer to a question: a controller that is cut off does not refuse, it is silent, and others know the answer too."""
RETRY_S: Final = 0.1
_LOOKS: Final = ("describe", "read_index")


class NoControllerError(Exception):
    """No controller gave an answer in time."""


class QuorumClient:
    """Asks at `addresses` (HOST:PORT of controllers' services) and wherever their answers point.

    `KnownControllers` that a subscription shares outlive the replacement of every controller that was configured.
    """

    def __init__(self, network: Network, clock: Clock, addresses: Sequence[str] | KnownControllers) -> None:
        self._network = network
        self._clock = clock
        self._known = addresses if isinstance(addresses, KnownControllers) else KnownControllers(addresses)

    async def ask(self, request: wire.QuorumRequest, *, timeout_s: float) -> wire.QuorumResponse:
        """The answer of the leader, or of any controller where the request says that any will do.

        Raises:
            OperationError: the request was refused for good.
            NoControllerError: nobody answered within the time; the message has the last reason.
        """
        hint: str | None = None
        reason = "none was reached"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    addresses = self._known.all
                    for address in (hint, *addresses) if hint else addresses:
                        response, reason = await self._ask_at(address, request)
                        if response is None:
                            continue
                        if response.WhichOneof("outcome") != "error":
                            return response
                        error = response.error
                        if error.code not in RETRY_SAME_OPERATION:
                            raise OperationError.from_proto(error)
                        hint, reason = error.leader_address or None, error.message
                        if hint is not None and hint != address:
                            break
                    await self._clock.sleep(RETRY_S)
        except TimeoutError as error:
            where = ", ".join(self._known.all)
            raise NoControllerError(f"no answer from the controllers at {where}: {reason}") from error

    async def _ask_at(
        self, address: str, request: wire.QuorumRequest
    ) -> tuple[wire.QuorumResponse | None, str]:
        try:
            connection = await self._network.connect(address, QUORUM)
        except ConnectionClosedError as error:
            return None, str(error) or f"{address} cannot be reached"
        try:
            async with asyncio.timeout(LOOK_S_MAX if request.WhichOneof("kind") in _LOOKS else CHANGE_S_MAX):
                await connection.send(request.SerializeToString())
                return wire.QuorumResponse.FromString(await connection.receive()), ""
        except ConnectionClosedError as error:
            return None, str(error) or f"{address} closed the connection"
        except TimeoutError:
            return None, f"{address} is silent"
        finally:
            await connection.close()


def refused(
    code: error_pb2.ErrorCode.ValueType, message: str, leader_address: str = ""
) -> wire.QuorumResponse:
    """A refusal as it goes over the wire."""
    error = error_pb2.Error(code=code, message=message, leader_address=leader_address)
    return wire.QuorumResponse(error=error)
