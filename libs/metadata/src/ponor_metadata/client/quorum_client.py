"""Asks the controllers about their quorum, or to change it.

What lives here: how long one controller may take over which question. Adding a learner that is there is success, as every repeated change is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_rpc.methods import QUORUM
from ponor_runtime.clock import Clock
from ponor_runtime.network import Network

from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.leader_calls import LeaderCalls, NoControllerError

__all__ = ["NoControllerError", "QuorumClient", "refused"]

CHANGE_S_MAX: Final = 10.0
"""One controller's answer to a change: it has to be committed, and a learner may have to catch up before."""
LOOK_S_MAX: Final = 2.0
"""One controller's answer to a question."""
_LOOKS: Final = ("describe", "read_index")


class QuorumClient:
    """Asks at `addresses`, see `LeaderCalls`."""

    def __init__(self, network: Network, clock: Clock, addresses: Sequence[str] | KnownControllers) -> None:
        self._questions = LeaderCalls(network, clock, addresses, QUORUM, wire.QuorumResponse.FromString)

    async def ask(self, request: wire.QuorumRequest, *, timeout_s: float) -> wire.QuorumResponse:
        """The answer of the leader, or of any controller where the request says that any will do.

        Raises:
            OperationError: the request was refused for good.
            NoControllerError: nobody answered within the time; the message has the last reason.
        """
        answer_s_max = LOOK_S_MAX if request.WhichOneof("kind") in _LOOKS else CHANGE_S_MAX
        return await self._questions.ask(
            request.SerializeToString(), answer_s_max=answer_s_max, timeout_s=timeout_s
        )


def refused(
    code: error_pb2.ErrorCode.ValueType, message: str, leader_address: str = ""
) -> wire.QuorumResponse:
    """A refusal as it goes over the wire."""
    error = error_pb2.Error(code=code, message=message, leader_address=leader_address)
    return wire.QuorumResponse(error=error)
