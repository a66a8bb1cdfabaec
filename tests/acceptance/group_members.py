"""Members of one consumer group as coroutines: the classic protocol over plain sockets, for any
Kafka, with assignment by the leader.

They implement only the part of a consumer between JoinGroup and LeaveGroup, so that fifty of them
cost little and the broker is measured. A member keeps its partitions between rebalances, commits an
offset for each when it gets them, and sends heartbeats.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ponor_kafka.codec import decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.heartbeat import HeartbeatRequest
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ponor_kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 60_000
HEARTBEAT_S: Final = 0.5
PROTOCOL: Final = "cooperative-sticky"


class Connection:
    """Send one request at a time."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)
        self._client_id = client_id
        self._correlation = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, request: Message, version: int) -> Any:
        """Return the response to a request."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        self._correlation += 1
        key = request.API_KEY
        frame = encode_request_header(key, version, self._correlation, self._client_id) + encode(
            request, version
        )
        writer.write(len(frame).to_bytes(4, "big") + frame)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        correlation, position = decode_response_header(key, version, answer)
        assert correlation == self._correlation
        return decode_response(key, version, answer, position)[0]

    def close(self) -> None:
        """Close the connection without a LeaveGroup."""
        if self._streams is not None:
            self._streams[1].close()


@dataclass
class Member:
    """One member; `share` is None while it has no assignment."""

    bootstrap: str
    group: str
    topic: str
    name: str
    partitions: int
    instance_id: str | None = None
    share: Sequence[int] | None = None
    generation: int = -1
    member_id: str = ""
    rebalances: int = 0
    task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._connection = Connection(self.bootstrap, self.name)
        self.task = asyncio.get_running_loop().create_task(self._live())

    def die(self) -> None:
        """Close the socket without a LeaveGroup, as SIGKILL does."""
        self.task.cancel()
        self._connection.close()

    async def leave(self) -> None:
        """Leave the group, as a dynamic member does."""
        self.die()
        last = Connection(self.bootstrap, self.name)
        await last.call(LeaveGroupRequest(self.group, members=[MemberIdentity(self.member_id)]), 4)
        last.close()

    async def _live(self) -> None:
        await self._find()
        while True:
            joined = await self._join()
            if joined is None:
                continue
            self.generation, self.member_id = joined.generation_id, joined.member_id
            request = SyncGroupRequest(
                self.group,
                self.generation,
                self.member_id,
                self.instance_id,
                "consumer",
                PROTOCOL,
                [] if joined.skip_assignment else self._plan([row.member_id for row in joined.members]),
            )
            synced = await self._connection.call(request, 5)
            if synced.error_code == ErrorCode.NONE:
                self.rebalances += 1
                count = len(synced.assignment) // 4
                share = struct.unpack(f">{count}i", synced.assignment)
                if await self._commit(share):
                    self.share = share
                    await self._beat()
                self.share = None

    async def _find(self) -> None:
        while True:
            found = await self._connection.call(
                FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group]), 4
            )
            if found.coordinators[0].error_code == ErrorCode.NONE:
                return
            await asyncio.sleep(0.1)

    async def _join(self) -> Any:
        metadata = self._subscription()
        request = JoinGroupRequest(
            self.group,
            SESSION_MS,
            REBALANCE_MS,
            self.member_id,
            self.instance_id,
            "consumer",
            [JoinGroupRequestProtocol(PROTOCOL, metadata)],
        )
        joined = await self._connection.call(request, 9)
        if joined.error_code == ErrorCode.NONE:
            return joined
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        elif joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        else:
            await asyncio.sleep(0.1)  # the coordinator is loading, or a rebalance happened before the join
        return None

    def _subscription(self) -> bytes:
        """User data as long as a real consumer's: topic, owned partitions and generation, for the
        sticky assignor.
        """
        name = self.topic.encode()
        owned = list(self.share or ())
        topic = struct.pack(">h", len(name)) + name
        partitions = struct.pack(f">ii{len(owned)}i", 1, len(owned), *owned)
        return struct.pack(">hi", 3, 1) + topic + struct.pack(">ii", 4, self.generation) + topic + partitions

    def _plan(self, members: Sequence[str]) -> list[SyncGroupRequestAssignment]:
        ids = sorted(members)
        shares = [range(n, self.partitions, len(ids)) for n in range(len(ids))]
        return [
            SyncGroupRequestAssignment(member_id, struct.pack(f">{len(share)}i", *share))
            for member_id, share in zip(ids, shares, strict=True)
        ]

    async def _commit(self, share: Sequence[int]) -> bool:
        rows = [OffsetCommitRequestPartition(partition, self.generation) for partition in share]
        request = OffsetCommitRequest(
            self.group,
            self.generation,
            self.member_id,
            self.instance_id,
            topics=[OffsetCommitRequestTopic(self.topic, partitions=rows)],
        )
        answer = await self._connection.call(request, 8)
        return all(row.error_code == ErrorCode.NONE for topic in answer.topics for row in topic.partitions)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance_id)
            if (await self._connection.call(request, 4)).error_code != ErrorCode.NONE:
                return
