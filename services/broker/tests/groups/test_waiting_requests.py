"""JoinGroup and SyncGroup requests that wait for a rebalance do not hold the budget of large requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ponor_broker.handlers.groups.groups import group_handlers
from ponor_broker.requests.connection import ClientConnection, ConnectionContext
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.request_flow import LARGE_CONTROL_BYTES, RequestFlow
from ponor_kafka.api import ApiKey, api_of
from ponor_kafka.codec import decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.disk import Buffer
from ponor_runtime.telemetry import Telemetry

LARGE_BYTES = 1 << 20
NAME_BYTES = 30_000
LONGEST_MS = (1 << 31) - 1
HALF_HOUR_MS = 1_800_000


class Listener:
    """The dispatcher and the byte budgets that all clients of a coordinator share."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.dispatcher = Dispatcher(
            group_handlers(world.coordinator, world, world.clock),
            raw={},
            serving=world.permission.serving,
            clock=world.clock,
            telemetry=Telemetry(),
        )
        budgets = [ByteBudget("bytes", 4 * LARGE_BYTES) for _ in range(2)]
        self.flow = RequestFlow(world.clock, in_flight=budgets[0], waiting=budgets[1])

    @property
    def held_bytes(self) -> tuple[int, int]:
        """Bytes of all requests, and of large requests."""
        return self.flow.in_flight.held_bytes, self.flow.large_quick.held_bytes


class Client:
    """A member of the group `g` with its connection."""

    def __init__(self, listener: Listener) -> None:
        self.answers: list[Any] = []
        self.ended: list[object] = []
        self.member_id = ""
        self.client_id, self.protocol_type = "client", "consumer"
        self.instance_id: str | None = None
        self._clock = listener.world.clock
        self._key = ApiKey.JOIN_GROUP
        context = ConnectionContext("127.0.0.1:5")
        self._connection = ClientConnection(listener.dispatcher, self, context, listener.flow)

    async def ask(self, key: ApiKey, request: Message) -> None:
        self._key, version = key, api_of(key).version_max
        header = encode_request_header(key, version, 7, self.client_id)
        self._connection.frames_received([bytearray(header + encode(request, version))])
        await self._clock.settle()

    async def join(self, size_bytes: int) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=HALF_HOUR_MS,
            rebalance_timeout_ms=LONGEST_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequestProtocol("range", bytes(size_bytes))],
        )
        await self.ask(ApiKey.JOIN_GROUP, request)
        if not self.member_id and self.instance_id is None:
            self.member_id = self.answers.pop().member_id
            await self.join(size_bytes)

    async def sync(self, generation: int, plan: dict[str, bytes]) -> None:
        request = SyncGroupRequest("g", generation, self.member_id)
        request.protocol_type, request.protocol_name = "consumer", "range"
        request.assignments = [SyncGroupRequestAssignment(*share) for share in plan.items()]
        await self.ask(ApiKey.SYNC_GROUP, request)

    def close(self) -> None:
        self._connection.closed()

    def send(self, buffers: Sequence[Buffer]) -> None:
        version, frame = api_of(self._key).version_max, b"".join(map(bytes, buffers))[4:]
        _, position = decode_response_header(self._key, version, frame)
        self.answers.append(decode_response(self._key, version, frame, position)[0])

    def want_reading(self, *, wanted: bool) -> None:
        del wanted

    def end(self, reason: str | BaseException) -> None:
        self.ended.append(reason)


@pytest.fixture
def listener(world: Any) -> Listener:
    return Listener(world)


async def stable_member(listener: Listener) -> Client:
    """The only member of `g`; it never joins again."""
    member = Client(listener)
    await member.join(9)
    await listener.world.clock.pass_ms(3_000)
    await member.sync(1, {})
    assert [answer.error_code for answer in member.answers] == [ErrorCode.NONE] * 2
    return member


async def test_a_join_that_waits_holds_the_bytes_of_a_small_request(listener: Listener) -> None:
    """The client chooses the rebalance timeout: a few such joins stopped all other large requests."""
    await stable_member(listener)
    joining = [Client(listener) for _ in range(8)]
    for client in joining:
        await client.join(LARGE_BYTES)
    assert [client.answers for client in joining] == [[]] * 8
    assert listener.held_bytes == (8 * LARGE_CONTROL_BYTES, 0)
    assert listener.world.coordinator.budget.size_bytes > 8 * LARGE_BYTES
    for client in joining:
        client.close()
    assert listener.held_bytes == (0, 0)


async def test_a_sync_that_waits_for_the_leader_holds_the_bytes_of_a_small_request(
    listener: Listener,
) -> None:
    leader = await stable_member(listener)
    follower = Client(listener)
    await follower.join(9)
    await leader.join(8)
    assert follower.answers.pop().leader == leader.member_id
    await follower.sync(2, {"someone": bytes(LARGE_BYTES)})
    assert follower.answers == []
    assert listener.held_bytes == (LARGE_CONTROL_BYTES, 0)
    await leader.sync(2, {follower.member_id: b"share", "other": bytes(LARGE_BYTES)})
    assert [(answer.error_code, answer.assignment) for answer in follower.answers] == [(0, b"share")]
    assert listener.held_bytes == (0, 0)


async def test_a_sync_of_the_leader_holds_its_bytes_until_the_assignments_are_durable(
    listener: Listener,
) -> None:
    leader = await stable_member(listener)
    await leader.join(8)
    for partition in listener.world.open.values():
        partition.is_slow = True
    await leader.sync(2, {leader.member_id: bytes(LARGE_BYTES)})
    assert listener.held_bytes[1] > LARGE_BYTES
    for partition in listener.world.open.values():
        partition.sync()
    await listener.world.clock.settle()
    assert len(leader.answers[-1].assignment) == LARGE_BYTES
    assert listener.held_bytes == (0, 0)


async def test_a_fenced_broker_closes_the_connection_of_a_large_join_that_waits(listener: Listener) -> None:
    """The request was freed, so it cannot be decoded again for an answer with an error."""
    await stable_member(listener)
    large, small = Client(listener), Client(listener)
    await large.join(LARGE_BYTES)
    await small.join(9)
    listener.world.permission.withdraw()
    await listener.world.clock.settle()
    assert len(large.ended) == 1
    assert [answer.error_code for answer in small.answers] == [ErrorCode.NOT_COORDINATOR]
    assert listener.held_bytes == (0, 0)


async def test_names_of_a_member_are_counted(listener: Listener) -> None:
    """100,000 groups with a member whose names have 32 KB took gigabytes beyond groups_memory_bytes_max."""
    member = Client(listener)
    member.client_id = "c" * NAME_BYTES
    member.instance_id = "i" * NAME_BYTES
    member.protocol_type = "t" * NAME_BYTES
    await member.join(LARGE_BYTES)
    assert listener.world.coordinator.budget.size_bytes > LARGE_BYTES + 3 * NAME_BYTES
    charged_bytes = listener.held_bytes[1]
    assert 3 * NAME_BYTES < charged_bytes < 4 * NAME_BYTES
    assert listener.held_bytes == (charged_bytes, charged_bytes)
    member.close()
    assert listener.held_bytes == (0, 0)
