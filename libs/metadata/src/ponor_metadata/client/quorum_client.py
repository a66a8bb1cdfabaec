"""Calls that describe or change the quorum. A change that is already in force succeeds, for example adding a
learner that is already a member.
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
"""How long one controller may take to answer a change. A change needs a commit and may wait for a learner to
catch up."""
READ_S_MAX: Final = 2.0
"""How long one controller may take to answer a read."""
_READS: Final = ("describe", "read_index")


class QuorumClient:
    """Calls to the leader; `addresses` as in `LeaderCalls`."""

    def __init__(self, network: Network, clock: Clock, addresses: Sequence[str] | KnownControllers) -> None:
        self._calls = LeaderCalls(network, clock, addresses, QUORUM, wire.QuorumResponse.FromString)

    async def ask(self, request: wire.QuorumRequest, *, timeout_s: float) -> wire.QuorumResponse:
        """Return the answer of the leader, or of any controller if the request allows that.

        Raises:
            OperationError: the request was refused; a retry would not help.
            NoControllerError: no answer within `timeout_s`; the message contains the last reason.
        """
        answer_s_max = READ_S_MAX if request.WhichOneof("kind") in _READS else CHANGE_S_MAX
        return await self._calls.ask(
            request.SerializeToString(), answer_s_max=answer_s_max, timeout_s=timeout_s
        )


def refused(
    code: error_pb2.ErrorCode.ValueType, message: str, leader_address: str = ""
) -> wire.QuorumResponse:
    """Return a refusal as a response message."""
    error = error_pb2.Error(code=code, message=message, leader_address=leader_address)
    return wire.QuorumResponse(error=error)
