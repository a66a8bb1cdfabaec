"""Partitions on memory streams, opened by the real opener from a real image."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ponor_broker.partitions.handoff.opening import Opening, OpenRequest
from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.handoff.partition_closing import closing_budget
from ponor_broker.partitions.handoff.partition_opener import PartitionOpener
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_broker.partitions.topics.topics import Topics
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.keys import KEYS, KeyRow
from ponor_runtime.identity import NodeId
from ponor_runtime.turns import TurnBudget

from services.broker.tests.memory_streams import MemoryStream, MemoryStreams

TOPIC_ID = bytes(range(16))


@dataclass
class SteppedClock:
    """A clock that the test advances."""

    now_ms: int = 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class PartitionRig:
    """One partition that can be opened repeatedly, each time at the next epoch."""

    config: TopicConfig = field(default_factory=TopicConfig)
    streams: MemoryStreams = field(default_factory=MemoryStreams)
    clock: SteppedClock = field(default_factory=SteppedClock)
    image: MetadataImage = field(default_factory=MetadataImage)
    epoch: int = -1
    topic: str = "t"
    attended: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.refused = RefusedSequences(self.clock)
        self.opener = PartitionOpener(
            self.streams,
            Topics(lambda: self.image),
            self._put_keys,
            self.clock,
            config=self.config,
            producers_max=100,
            attend=self.attended.append,
            refused=self.refused,
        )
        self.owned = OwnedStreams(self.streams, Topics(lambda: self.image), NodeId(7), attend=lambda _: None)

    async def _put_keys(self, puts: Sequence[tuple[str, bytes]]) -> list[bytes]:
        for key, value in puts:
            self.image[KEYS].put(KeyRow(key, value))
        return [value for _, value in puts]

    async def open(self) -> Partition:
        """Open at the next epoch, as after a move or a crash."""
        self.epoch += 1
        opened: list[Partition] = []
        opening = Opening(OpenRequest(PartitionId(TOPIC_ID, self.topic, 0), self.epoch, {}))
        for refusal in await self.opener.open([opening], lambda some: opened.extend(one for _, one in some)):
            raise refusal.error
        (partition,) = opened
        return partition

    def stream(self, kind: str) -> MemoryStream:
        """The newest stream with this tag."""
        found = [stream_id for stream_id, tags in self.streams.tags.items() if tags["kind"] == kind]
        return self.streams.streams[found[-1]]


def turns() -> TurnBudget:
    """A budget for the close of one partition."""
    return closing_budget(SteppedClock())


def batch(
    count: int = 1, *, timestamp: int = 5, producer_id: int = -1, epoch: int = -1, sequence: int = -1
) -> BatchView:
    """A producer's batch of `count` records with rising timestamps."""
    records = [(timestamp + index, b"key", b"value") for index in range(count)]
    return BatchView(
        memoryview(
            build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        )
    )
