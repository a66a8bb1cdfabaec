"""Calls of the quorum client: hints are followed, dead and silent controllers are skipped, refusals are
raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_metadata.client import quorum_client
from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.quorum_client import QuorumClient, refused
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import QUORUM
from ponor_runtime.network import Connection, ConnectionClosedError, Listener
from ponor_runtime.system import SystemClock

from tests.ports import HOST, free_port

PATIENCE_SECONDS = 90.0
"""Only a hanging test reaches it."""
DESCRIBE = wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))
NOT_LEADER = error_pb2.ERROR_CODE_NOT_LEADER
OVERLOADED = error_pb2.ERROR_CODE_OVERLOADED
Answer = Callable[[int], wire.QuorumResponse | None]
"""From the number of earlier requests to the answer; None: no answer."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough that a busy machine does not look like a silent controller."""
    monkeypatch.setattr(quorum_client, "READ_S_MAX", PATIENCE_SECONDS)


class Asked:
    """An address and the number of its requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.times = 0
        self.address = ""
        self.listener: Listener | None = None

    async def serve(self, connection: Connection) -> None:
        try:
            while True:
                await connection.receive()
                answer = self._answer(self.times)
                self.times += 1
                if answer is not None:
                    await connection.send(answer.SerializeToString())
        except ConnectionClosedError:
            return


@asynccontextmanager
async def answering(answers: Iterable[Answer]) -> AsyncIterator[tuple[GrpcNetwork, list[Asked]]]:
    """Scripted listeners."""
    network = GrpcNetwork()
    asked = [Asked(answer) for answer in answers]
    try:
        for each in asked:
            each.listener = await network.listen("127.0.0.1:0", {QUORUM: each.serve})
            each.address = each.listener.address
        yield network, asked
    finally:
        for each in asked:
            if each.listener is not None:
                await each.listener.close()
        await network.close()


def leads(index: int) -> Answer:
    """A leader."""
    return lambda _: wire.QuorumResponse(done=wire.QuorumDone(index=index))


def says_no(code: error_pb2.ErrorCode.ValueType = NOT_LEADER, leader: str = "") -> Answer:
    """A controller that refuses."""
    return lambda _: refused(code, "no", leader)


def unused_address() -> str:
    """An address without a listener."""
    return f"{HOST}:{free_port()}"


def client(network: GrpcNetwork, *addresses: str) -> QuorumClient:
    return QuorumClient(network, SystemClock(), addresses)


async def test_a_hint_of_a_follower_leads_to_the_leader_directly() -> None:
    async with answering([leads(7), says_no(), says_no()]) as (network, (leader, other, follower)):
        follower._answer = says_no(leader=leader.address)
        answer = await client(network, follower.address, other.address).ask(
            DESCRIBE, timeout_s=PATIENCE_SECONDS
        )
        assert answer.done.index == 7
        assert (follower.times, other.times, leader.times) == (1, 0, 1)


async def test_dead_controllers_are_skipped_and_followers_without_a_leader_are_retried() -> None:
    def elects(times: int) -> wire.QuorumResponse:
        return leads(9)(0) if times == 2 else refused(NOT_LEADER, "an election is under way")  # type: ignore[return-value]

    async with answering([elects, says_no(OVERLOADED)]) as (network, (candidate, busy)):
        asking = client(network, unused_address(), busy.address, candidate.address)
        assert (await asking.ask(DESCRIBE, timeout_s=PATIENCE_SECONDS)).done.index == 9
        assert (candidate.times, busy.times) == (3, 3), "one after the other, in rounds"


async def test_other_controllers_are_tried_after_a_hint_to_a_dead_leader() -> None:
    def learns(times: int) -> wire.QuorumResponse:
        return leads(3)(0) if times else refused(NOT_LEADER, "no", gone)  # type: ignore[return-value]

    gone = unused_address()
    async with answering([learns]) as (network, (follower,)):
        assert (
            await client(network, follower.address).ask(DESCRIBE, timeout_s=PATIENCE_SECONDS)
        ).done.index == 3


async def test_a_silent_controller_is_left_after_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_client, "READ_S_MAX", 0.2)
    async with answering([lambda _: None, leads(4)]) as (network, (cut_off, leader)):
        asking = client(network, cut_off.address, leader.address)
        assert (await asking.ask(DESCRIBE, timeout_s=PATIENCE_SECONDS)).done.index == 4
        assert cut_off.times, "contacted once"


async def test_a_refusal_ends_the_call() -> None:
    async with answering([says_no(error_pb2.ERROR_CODE_INVALID_REQUEST), leads(1)]) as (network, asked):
        with pytest.raises(OperationError, match="no") as error:
            await client(network, *(each.address for each in asked)).ask(DESCRIBE, timeout_s=PATIENCE_SECONDS)
        assert error.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST
        assert asked[1].times == 0


async def test_a_timeout_names_the_addresses_and_the_last_reason() -> None:
    async with answering([says_no()]) as (network, (follower,)):
        timeout_s, said = 0.3, ""
        while not said.endswith(f"{follower.address}: no"):
            with pytest.raises(NoControllerError, match=follower.address) as unanswered:
                await client(network, follower.address).ask(DESCRIBE, timeout_s=timeout_s)
            said = str(unanswered.value)
            timeout_s *= 2  # the timeout ended before this machine had sent a request
        with pytest.raises(NoControllerError, match="no answer from the controllers at"):
            await client(network, unused_address()).ask(DESCRIBE, timeout_s=0.3)


async def test_learned_controllers_are_tried_too() -> None:
    async with answering([leads(5)]) as (network, (newcomer,)):
        known = KnownControllers([unused_address()])
        asking = QuorumClient(network, SystemClock(), known)
        question = asyncio.create_task(asking.ask(DESCRIBE, timeout_s=PATIENCE_SECONDS))
        await asyncio.sleep(0)
        known.learn([newcomer.address])
        assert (await question).done.index == 5
