"""The handlers of share groups over real partitions on memory streams and a persister in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.handlers.fetch.cold_reads import ColdReads
from ponor_broker.handlers.fetch.fetch_parking import FetchParking, ReadBounds
from ponor_broker.handlers.share.share import ShareDelivery
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_broker.share_partitions.settings import ShareSettings
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.messages import share_acknowledge, share_fetch
from ponor_runtime.runtime import Runtime

from services.broker.tests.fetch_rig import FetchRig, SeededRandomness
from services.broker.tests.share_kit import MemoryPersister

Acks = Sequence[tuple[int, int, Sequence[int]]]
"""First offset, last offset, types."""
ACCEPT, RELEASE, REJECT, RENEW = [1], [2], [3], [4]


@dataclass
class Member:
    """A member with its connection. `fetch` and `acknowledge` continue its session."""

    rig: ShareRig
    name: str
    epoch: int = 0
    connection: ConnectionContext = field(default_factory=lambda: ConnectionContext("1.2.3.4:5"))

    async def fetch(
        self,
        topics: Iterable[str] = (),
        *,
        acks: Acks = (),
        topic: str = "a",
        version: int = 2,
        **options: Any,
    ) -> share_fetch.ShareFetchResponse:
        """Send a ShareFetch; the answer was encoded and decoded."""
        wanted = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500, **options}
        request = share_fetch.ShareFetchRequest("g", self.name, self.epoch, **wanted)
        request.topics = [
            share_fetch.FetchTopic(self.rig.fetching.topic_ids[name], [share_fetch.FetchPartition(0)])
            for name in topics
        ]
        if acks:
            batches = [share_fetch.AcknowledgementBatch(*one) for one in acks]
            row = share_fetch.FetchPartition(0, batches)
            request.topics = [share_fetch.FetchTopic(self.rig.fetching.topic_ids[topic], [row])]
        self._next_epoch()
        response = await self.rig.fetcher.handle(request, RequestContext(version, "c", self.connection))
        return decode_as(share_fetch.ShareFetchResponse, version, bytes(encode(response, version)))[0]

    async def acknowledge(
        self, acks: Acks, *, topic: str = "a", **options: Any
    ) -> share_acknowledge.ShareAcknowledgeResponse:
        """Send a ShareAcknowledge."""
        batches = [share_acknowledge.AcknowledgementBatch(*one) for one in acks]
        row = share_acknowledge.AcknowledgePartition(0, batches)
        topics = [share_acknowledge.AcknowledgeTopic(self.rig.fetching.topic_ids[topic], [row])]
        request = share_acknowledge.ShareAcknowledgeRequest(
            "g", self.name, self.epoch, topics=topics if acks else [], **options
        )
        self._next_epoch()
        response = await self.rig.acknowledger.handle(request, RequestContext(2, "c", self.connection))
        return decode_as(share_acknowledge.ShareAcknowledgeResponse, 2, bytes(encode(response, 2)))[0]

    async def code(self, acks: Acks, **options: Any) -> int:
        """Send a ShareAcknowledge and return the error of its partition."""
        response = await self.acknowledge(acks, **options)
        assert response.error_code == 0
        return int(response.responses[0].partitions[0].error_code)

    async def acquired(self, topics: Iterable[str] = (), **options: Any) -> list[tuple[int, int, int]]:
        """Fetch; return the acquired records."""
        return ranges(await self.fetch(topics, **options))

    def disconnect(self) -> None:
        """End the connection."""
        for callback in list((self.connection.on_closed or {}).values()):
            callback()

    def _next_epoch(self) -> None:
        if self.epoch >= 0:
            self.epoch += 1


class ShareRig:
    """One broker with topic `a`; further topics and other leaders through `fetching`."""

    def __init__(self, configs: dict[str, str] | None = None, **settings: int) -> None:
        self.configs = {"share.auto.offset.reset": "earliest", **(configs or {})}
        self.settings = ShareSettings(**settings)
        self.fetching = FetchRig()
        self.persister = MemoryPersister()

    async def __aenter__(self) -> ShareRig:
        rig = await self.fetching.__aenter__()
        runtime = Runtime(
            rig.clock,
            SeededRandomness(),
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            rig.telemetry,
            lambda _, error: rig._failed.append(error),
        )
        self.delivery = ShareDelivery(
            self.persister,
            rig.partitions,
            ReadBounds(
                ColdReads(rig.settings, clock=rig.clock, telemetry=rig.telemetry),
                FetchParking(100, rig.telemetry),
                rig.backlog,
            ),
            rig.permission.serving,
            runtime,
            replace(rig.settings, share=self.settings),
            lambda _: self.configs,
        )
        self.shares = self.delivery.partitions
        self.fetcher, self.acknowledger = self.delivery.fetch, self.delivery.acknowledge
        await rig.create("a")
        await self.initialize("a")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.delivery.close()
        await self.fetching.__aexit__(*error)

    async def initialize(self, topic: str, state_epoch: int = 1, start_offset: int = -1) -> None:
        """Create the durable state, as the group coordinator does."""
        await self.persister.initialize(self.key(topic), state_epoch, start_offset)

    def key(self, topic: str = "a") -> SharePartitionKey:
        return SharePartitionKey("g", UUID(bytes=self.fetching.topic_ids[topic]), 0)

    def holds(self, member_id: str, topic: str) -> bool:
        """Whether a member holds records of a topic."""
        share = self.shares.find("g", self.fetching.topic_ids[topic], 0)
        return (
            share is not None
            and share.state is not None
            and any(run.is_held_by(member_id) for run in share.state.runs)
        )

    async def append(self, *records: int, topic: str = "a") -> None:
        """Append batches with these numbers of records."""
        for count in records:
            await self.fetching.append(topic, records=count)

    async def member(self, name: str = "m", *topics: str) -> Member:
        """A member whose session has begun, after its share partitions were loaded."""
        member = Member(self, name)
        await member.fetch(topics or ("a",), max_records=0)
        for topic in topics or ("a",):
            self.shares.open("g", self.fetching.partition(topic))
        await turns()
        return member

    async def pass_time(self, ms: int) -> None:
        """Advance the clock in small steps, as a broker that is not paused observes time."""
        for _ in range(ms // 50):
            self.fetching.clock.now_ms += 50
            await turns(3)
        await turns()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def ranges(response: share_fetch.ShareFetchResponse) -> list[tuple[int, int, int]]:
    """The acquired records of an answer."""
    assert response.error_code == 0, response.error_message
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in response.responses
        for row in topic.partitions
        for one in row.acquired_records
    ]
