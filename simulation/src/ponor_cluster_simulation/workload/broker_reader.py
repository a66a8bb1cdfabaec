"""Readers that stay with one broker: each reads partition ends and committed offsets over one connection.

Other clients leave a paused broker and would not observe its answers after it resumes. A replaced broker may
not have detected its fence yet. Its answers must not be older than one session timeout: it must stop
answering before another broker can lead its partitions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.workload.committer import Committer
from ponor_cluster_simulation.workload.history import ClusterHistory
from ponor_cluster_simulation.workload.kafka_client import KafkaClient

INVARIANT: Final = 40
PATIENCES_S: Final = (6.0, 60.0)
"""Timeouts of a connection. With the short timeout the reader replaces the connection during a pause of the
broker; with the long timeout the connection keeps its fetch session.
"""
REMEMBERED_EVERY_S: Final = 0.2
PAUSE_S: Final = (0.05, 0.3)
LATEST: Final = -1
ANSWER_BYTES_MAX: Final = 1 << 20


class Known(NamedTuple):
    """Acknowledged offsets up to a time, in virtual seconds."""

    at_s: float
    ends: dict[int, int]
    committed: list[int]


@dataclass(slots=True)
class Session:
    """A fetch session of one connection, and the high watermarks that the broker returned."""

    patience_s: float
    high_watermarks: dict[int, int] = field(default_factory=dict)
    session_id: int = 0
    epoch: int = 0


class BrokerReader:
    """A reader of one broker. Its process never crashes.

    Attributes:
        reads: number of compared answers without an error.
    """

    def __init__(
        self,
        name: str,
        address: str,
        topic: str,
        history: ClusterHistory,
        committers: Sequence[Committer],
        checks: Checks,
        *,
        session_timeout_ms: int,
    ) -> None:
        self.name = name
        self._address = address
        self._topic = topic
        self._history = history
        self._committers = committers
        self._checks = checks
        self._bound_s = session_timeout_ms / 1000
        self._known: deque[Known] = deque()
        self.reads = 0
        self.stop = False

    async def run(self, runtime: Runtime) -> None:
        """Read until stopped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._remember(runtime))
            await self._read(runtime)

    async def _remember(self, runtime: Runtime) -> None:
        while not self.stop:
            committed = [each.acknowledged for each in self._committers]
            self._known.append(Known(_now_s(runtime), dict(self._history.ends), committed))
            await runtime.clock.sleep(REMEMBERED_EVERY_S)

    async def _read(self, runtime: Runtime) -> None:
        while not self.stop:
            await runtime.clock.sleep(runtime.randomness.uniform(*PAUSE_S))
            with suppress(ConnectionClosedError):
                async with KafkaClient.connected(runtime, self._address, self.name) as client:
                    await self._converse(runtime, client)

    async def _converse(self, runtime: Runtime, client: KafkaClient) -> None:
        session = Session(PATIENCES_S[runtime.randomness.below(len(PATIENCES_S))])
        while not self.stop:
            await self._fetch(client, session, self._floor(runtime))
            await self._list_offsets(client, session, self._floor(runtime))
            for number, committer in enumerate(self._committers):
                floor = self._floor(runtime).committed[number]
                await self._fetch_offset(client, session, committer, floor)
            await runtime.clock.sleep(runtime.randomness.uniform(*PAUSE_S))

    def _floor(self, runtime: Runtime) -> Known:
        """The offsets that were acknowledged one session timeout ago: the lower bound of every answer from
        now on.
        """
        before_s = _now_s(runtime) - self._bound_s
        while len(self._known) > 1 and self._known[1].at_s <= before_s:
            self._known.popleft()
        if self._known and self._known[0].at_s <= before_s:
            return self._known[0]
        return Known(before_s, {}, [-1] * len(self._committers))

    async def _fetch(self, client: KafkaClient, session: Session, floor: Known) -> None:
        """Send the next request of the session. The answer has room for all rows, so a partition
        without a row has not changed.
        """
        rows = [
            FetchPartition(index, fetch_offset=end, partition_max_bytes=1)
            for index, end in self._history.ends.items()
            if index not in session.high_watermarks
        ]
        request = FetchRequest(
            max_wait_ms=0,
            max_bytes=ANSWER_BYTES_MAX,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=[FetchTopic(self._topic, partitions=rows)] if rows else [],
        )
        answer = await client.ask(request, 12, FetchResponse, timeout_s=session.patience_s)
        if answer.error_code or not answer.session_id:
            session.session_id = session.epoch = 0
            session.high_watermarks.clear()
            return
        session.session_id = answer.session_id
        session.epoch += 1
        session.high_watermarks.update({row.partition: -1 for row in rows})
        for topic in answer.responses:
            for row in topic.partitions:
                session.high_watermarks[row.partition_index] = -1 if row.error_code else row.high_watermark
        for index, high_watermark in session.high_watermarks.items():
            if high_watermark >= 0:
                self._require_end(index, high_watermark, floor, "fetch")

    async def _list_offsets(self, client: KafkaClient, session: Session, floor: Known) -> None:
        rows = [ListOffsetsPartition(index, timestamp=LATEST) for index in self._history.ends]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(self._topic, rows)])
        answer = await client.ask(request, 7, ListOffsetsResponse, timeout_s=session.patience_s)
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code == ErrorCode.NONE:
                    self._require_end(row.partition_index, row.offset, floor, "list-offsets")

    async def _fetch_offset(
        self, client: KafkaClient, session: Session, committer: Committer, floor: int
    ) -> None:
        request = OffsetFetchRequest(committer.group, [OffsetFetchRequestTopic(self._topic, [0])])
        answer = await client.ask(request, 5, OffsetFetchResponse, timeout_s=session.patience_s)
        if answer.error_code == ErrorCode.NONE:
            found = answer.topics[0].partitions[0].committed_offset
            self._require(found >= floor, f"offset-fetch of {committer.group} returned {found}, but {floor}")

    def _require_end(self, index: int, end: int, floor: Known, how: str) -> None:
        known = floor.ends.get(index, 0)
        self._require(end >= known, f"{how} of partition {index} returned the end {end}, but {known}")

    def _require(self, holds: bool, what: str) -> None:
        self.reads += 1
        self._checks.require(
            INVARIANT,
            holds,
            f"{self.name} received from {self._address}: {what} was acknowledged {self._bound_s:g} s before"
            " the request",
        )


def _now_s(runtime: Runtime) -> float:
    return runtime.clock.monotonic_ns() / 1e9
