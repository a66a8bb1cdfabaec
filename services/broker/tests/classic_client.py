"""A consumer with the classic protocol against a coordinator: joins, syncs, and reports what it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import JoinAnswer, SyncAnswer
from ponor_broker.groups.member import JoinProtocol
from ponor_kafka.codec import decode_versioned, encode_versioned
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ponor_kafka.messages.consumer_protocol_assignment import TopicPartition as Assigned
from ponor_kafka.messages.consumer_protocol_subscription import ConsumerProtocolSubscription, TopicPartition

SUBSCRIPTION_VERSION = 3


def subscription(topics: list[str], owned: Mapping[str, set[int]], generation: int = -1) -> bytes:
    rows = [TopicPartition(topic, sorted(indexes)) for topic, indexes in owned.items()]
    message = ConsumerProtocolSubscription(topics, None, rows, generation)
    return encode_versioned(message, SUBSCRIPTION_VERSION)


def assignment(partitions: Mapping[str, set[int]]) -> bytes:
    rows = [Assigned(topic, sorted(indexes)) for topic, indexes in partitions.items()]
    return encode_versioned(ConsumerProtocolAssignment(rows), SUBSCRIPTION_VERSION)


def partitions_of(data: bytes) -> dict[str, set[int]]:
    if not data:
        return {}
    message, _ = decode_versioned(ConsumerProtocolAssignment, data)
    return {row.topic: set(row.partitions) for row in message.assigned_partitions if row.partitions}


@dataclass
class ClassicClient:
    """One consumer. With `is_eager` it revokes everything before it joins."""

    world: Any
    name: str
    topics: list[str]
    group: str = "g"
    is_eager: bool = True
    instance_id: str | None = None
    protocol: str = "range"
    member_id: str = ""
    generation: int = -1
    owned: dict[str, set[int]] = field(default_factory=dict)

    @property
    def claim(self) -> MemberClaim:
        return MemberClaim(self.member_id, self.instance_id, self.generation)

    def join_request(self) -> JoinRequest:
        if self.is_eager:
            self.owned = {}
        data = subscription(self.topics, self.owned, self.generation)
        protocols = (JoinProtocol(self.protocol, data),)
        return JoinRequest(
            self.member_id,
            self.instance_id,
            self.name,
            "/h",
            10_000,
            20_000,
            "consumer",
            protocols,
            True,
            True,
        )

    async def join(self) -> JoinAnswer:
        """Join until the coordinator accepts a member id."""
        while True:
            answer: JoinAnswer = await self.world.coordinator.join_group(self.group, self.join_request())
            if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif answer.error is not ErrorCode.REBALANCE_IN_PROGRESS:
                break
        if answer.error is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    async def sync(self, given: Mapping[str, Mapping[str, set[int]]] | None = None) -> SyncAnswer:
        """Sync; a leader gives the assignments by member id."""
        assignments = {member_id: assignment(each) for member_id, each in (given or {}).items()}
        answer: SyncAnswer = await self.world.coordinator.sync_group(
            self.group, SyncRequest(self.claim, "consumer", self.protocol, assignments)
        )
        if answer.error is ErrorCode.NONE:
            self.owned = partitions_of(answer.assignment)
        return answer

    def beat(self) -> ErrorCode:
        error: ErrorCode = self.world.coordinator.heartbeat(self.group, self.claim)
        return error

    async def rejoin(self) -> ErrorCode:
        """Join and sync as a follower."""
        answer = await self.join()
        return answer.error if answer.error is not ErrorCode.NONE else (await self.sync()).error

    async def follow(self) -> ErrorCode:
        """Send a heartbeat, and rejoin if the answer says so."""
        error = self.beat()
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation, self.owned = "", -1, {}
        if error is ErrorCode.ILLEGAL_GENERATION:
            self.generation, self.owned = -1, {}
        return error if error is ErrorCode.NONE else await self.rejoin()

    async def leave(self) -> ErrorCode:
        answer = await self.world.coordinator.leave_group(self.group, (MemberClaim(self.member_id),))
        error: ErrorCode = answer.results[0][1]
        return error


async def form(clients: list[ClassicClient], shares: Mapping[str, Mapping[str, set[int]]]) -> None:
    """Let clients form a classic group with the shares by name; the clock passes the initial delay."""
    world = clients[0].world
    joins = [asyncio.ensure_future(client.join()) for client in clients]
    await world.clock.pass_ms(7_000)
    answers = await asyncio.gather(*joins)
    given = {client.member_id: shares[client.name] for client in clients}
    leads = [answer.leader == answer.member_id for answer in answers]
    syncs = [
        asyncio.ensure_future(client.sync(given if leader else None))
        for client, leader in zip(clients, leads, strict=True)
    ]
    await world.clock.settle()
    assert {answer.error for answer in await asyncio.gather(*syncs)} == {ErrorCode.NONE}
