"""The serving lease: withdrawal and return of permission, and running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.requests.api_handler import ApiHandler, RequestContext, WhenFenced
from ponor_broker.requests.connection import ClientConnection, ConnectionContext
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.request_flow import RequestFlow
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode_response, encode, request_class
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ponor_kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.fetch_rig import FetchRig
from services.broker.tests.partition_rig import SteppedClock
from services.broker.tests.serving_kit import BOUND_MS, Permission


def test_either_age_withdraws_permission_and_both_restore_it() -> None:
    permission = Permission(SystemClock())
    told: list[bool] = []
    permission.serving.listeners.append(told.append)
    assert permission.look(BOUND_MS, BOUND_MS) is None
    assert permission.look(BOUND_MS + 1, 0) is not None
    assert permission.look(0, 20_000) is not None
    assert permission.look(100, 100) is None
    assert permission.look(0, BOUND_MS + 1) is not None
    assert told == [True, False, True]
    assert permission.serving.epoch == 2


def test_a_broker_without_contact_to_a_controller_may_not_answer() -> None:
    assert Permission(SystemClock()).look(None, 0) is not None
    assert Permission(SystemClock()).look(0, None) is not None


async def test_a_fenced_broker_finds_no_partition_and_continues_afterwards() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        partition = rig.partitions.find("t", 0)
        rig.permission.withdraw()
        assert rig.partitions.get("t", 0) is None
        with pytest.raises(PartitionError, match="must not answer") as refused:
            rig.partitions.find("t", 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, (
            "clients look for another leader, and come back"
        )
        rig.permission.restore()
        assert rig.partitions.find("t", 0) is partition


async def test_a_fetch_session_does_not_survive_a_withdrawal() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.append("t")
        session_id = (await rig.fetch([(("t", 0), 0)], epoch=0)).session_id
        rig.permission.withdraw()
        found = await rig.fetch([(("t", 0), 0)], session_id=session_id, epoch=1)
        assert found.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert rig.answers(found) == {}
        assert len(rig.sessions) == 0


async def test_a_fetch_session_of_a_fenced_broker_finds_its_partitions_when_permission_is_back() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.append("t")
        rig.permission.withdraw()
        first = await rig.fetch([(("t", 0), 0)], epoch=0)
        assert rig.answers(first)["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        rig.permission.restore()
        found = await rig.fetch([(("t", 0), 0)], session_id=first.session_id, epoch=1)
        assert rig.answers(found)["t", 0].high_watermark == 1


class Desk:
    """A dispatcher with three APIs that the test answers, and the frames that reached the client."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.permission = Permission(self.clock)
        self.waiting: list[asyncio.Event] = []
        self.begun = 0
        self.sent: list[Message] = []
        self.ended: list[str | BaseException] = []
        handlers = [
            ApiHandler(ApiKey.HEARTBEAT, 0, 4, self._beat, WhenFenced.REFUSES),
            ApiHandler(ApiKey.LIST_GROUPS, 0, 5, self._list),
        ]
        self.dispatcher = Dispatcher(
            handlers, raw={}, serving=self.permission.serving, clock=self.clock, telemetry=Telemetry()
        )

    async def _beat(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        del request, context
        self.begun += 1
        if self.permission.serving.refusal is not None:
            return HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
        await self._wait()
        return HeartbeatResponse()

    async def _list(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        del request, context
        await self._wait()
        return ListGroupsResponse()

    async def _wait(self) -> None:
        self.waiting.append(asyncio.Event())
        await self.waiting[-1].wait()

    def connect(self) -> ClientConnection:
        flow = RequestFlow(
            self.clock, in_flight=ByteBudget("in flight", 1 << 20), waiting=ByteBudget("waiting", 1 << 20)
        )
        return ClientConnection(self.dispatcher, self, ConnectionContext("peer:1"), flow)

    async def ask(self, key: ApiKey) -> ClientConnection:
        connection = self.connect()
        frame = encode_request_header(key, 1, 1, None) + encode(request_class(key)(), 1)
        connection.frames_received([bytearray(frame)])
        await self.settle()
        return connection

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    # ConnectionOutput

    def send(self, buffers: Sequence[Buffer]) -> None:
        frame = b"".join(buffers)[4:]
        self.sent.append(decode_response(ApiKey.HEARTBEAT, 1, frame, 4)[0])

    def want_reading(self, *, wanted: bool) -> None:
        del wanted

    def end(self, reason: str | BaseException) -> None:
        self.ended.append(reason)


def codes(desk: Desk) -> list[int]:
    return [cast("HeartbeatResponse", answer).error_code for answer in desk.sent]


async def test_requests_that_wait_are_refused_when_permission_is_withdrawn() -> None:
    desk = Desk()
    for _ in range(3):
        await desk.ask(ApiKey.HEARTBEAT)
        await desk.ask(ApiKey.LIST_GROUPS)
    desk.permission.withdraw()
    await desk.settle()
    assert codes(desk) == [ErrorCode.NOT_COORDINATOR] * 3
    assert len(desk.ended) == 3
    assert all("must not answer" in str(reason) for reason in desk.ended)
    assert len(desk.dispatcher._under_way) == 0
    assert desk.dispatcher.requests == 3


async def test_a_paused_process_does_not_send_its_answer() -> None:
    """No check ran since the request began, so the check at the answer finds that permission has ended."""
    desk = Desk()
    await desk.ask(ApiKey.HEARTBEAT)
    await desk.ask(ApiKey.LIST_GROUPS)
    for event in desk.waiting:
        event.set()
    desk.permission.age(BOUND_MS + 1)
    await desk.settle()
    assert codes(desk) == [ErrorCode.NOT_COORDINATOR]
    assert len(desk.ended) == 1


async def test_a_request_is_not_executed_twice_when_permission_returns() -> None:
    desk = Desk()
    await desk.ask(ApiKey.HEARTBEAT)
    desk.permission.withdraw()
    desk.permission.restore()
    await desk.settle()
    assert desk.sent == []
    assert len(desk.ended) == 1
    assert desk.begun == 1
    await desk.ask(ApiKey.HEARTBEAT)
    desk.waiting[-1].set()
    await desk.settle()
    assert codes(desk) == [ErrorCode.NONE]


async def test_a_disconnected_client_leaves_no_running_request() -> None:
    desk = Desk()
    connection = await desk.ask(ApiKey.HEARTBEAT)
    assert len(desk.dispatcher._under_way) == 1
    connection.closed()
    desk.permission.withdraw()
    await desk.settle()
    assert len(desk.dispatcher._under_way) == 0
    assert desk.begun == 1
