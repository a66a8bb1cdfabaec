"""Rig for compaction tests: real objects in a memory store, and a reader of all their records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ponor_runtime.budgets import ByteBudget
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.compaction.copy_plan import CopyPlan
from s3stream.compaction.executor import CompactedObjects, Compaction
from s3stream.compaction.movement import Unthrottled
from s3stream.compaction.plan import CompactionPlan
from s3stream.compaction.sources import ObjectLocation
from s3stream.objects.block import decode_block
from s3stream.objects.inspect import verify
from s3stream.objects.keys import object_key
from s3stream.objects.reader import read_index
from s3stream.objects.writer import ObjectWriter
from s3stream.ports import PreparedObjects, StreamState
from s3stream.records import TIMESTAMP_MIN, StreamRecord

from libs.s3stream.tests.memory_multipart import MemoryMultipartStore
from libs.s3stream.tests.store_rig import MemoryObjectStore

NAMESPACE = "ns"
Ranges = Sequence[tuple[int, int, int]]
"""Stream, start offset, end offset."""

Record = tuple[int, int, int, int, bytes]
"""Stream, base offset, count, epoch, payload: what a fetch returns."""


def states(starts: Mapping[int, int]) -> dict[StreamId, StreamState]:
    return {
        StreamId(stream): StreamState(StreamId(stream), StreamEpoch(9), start, 1 << 40)
        for stream, start in starts.items()
    }


class CountingThrottle(Unthrottled):
    """A throttle without limits that records its calls."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.writes: list[int] = []

    async def before_read(self, size_bytes: int) -> None:
        self.reads.append(size_bytes)

    async def before_write(self, size_bytes: int) -> None:
        self.writes.append(size_bytes)


@dataclass
class World:
    """A store with objects, and a compaction of them."""

    part_size_bytes_min: int = 1
    budget_bytes: int = 1 << 20
    next_id: int = 1
    prepared: list[PreparedObjects] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryObjectStore()
        self.parts = MemoryMultipartStore(self.store, part_size_bytes_min=self.part_size_bytes_min)
        self.throttle = CountingThrottle()
        self.budget = ByteBudget("compaction", self.budget_bytes)
        self.compaction = Compaction(
            store=self.store,
            multipart=self.parts,
            prepare=self.prepare,
            budget=self.budget,
            throttle=self.throttle,
            on_progress=lambda done, total: self.progress.append((done, total)),
        )

    async def prepare(self, count: int) -> PreparedObjects:
        prepared = PreparedObjects(ObjectId(self.next_id), count, NAMESPACE, 0)
        self.next_id += count
        self.prepared.append(prepared)
        return prepared

    async def put(
        self,
        ranges: Ranges,
        *,
        block_bytes_max: int = 100,
        payload_bytes: int = 10,
        epoch: int = 0,
        known_streams: Collection[int] = (),
    ) -> ObjectLocation:
        """Create an object of records that span one offset each, with the offset as timestamp. Some
        streams have known smallest timestamps.
        """
        object_id = ObjectId(self.next_id)
        self.next_id += 1
        writer = ObjectWriter(object_id, block_bytes_max=block_bytes_max)
        for stream, start, end in sorted(ranges):
            for offset in range(start, end):
                payload = (f"{stream}/{offset}." * payload_bytes)[:payload_bytes].encode()
                oldest = offset if stream in known_streams else TIMESTAMP_MIN
                writer.add(
                    StreamRecord(StreamId(stream), StreamEpoch(epoch), offset, 1, offset, payload, oldest)
                )
        encoded = writer.finish()
        await self.store.put(object_key(NAMESPACE, object_id), encoded.buffers)
        return ObjectLocation(object_id, NAMESPACE, 0, encoded.size_bytes)

    async def run(self, plan: CompactionPlan | CopyPlan) -> list[ObjectLocation]:
        """Execute a plan; return the objects to commit in place of the sources."""
        done: CompactedObjects = await self.compaction.run(plan)
        uploaded = [*([done.stream_set_object] if done.stream_set_object else []), *done.stream_objects]
        locations = [ObjectLocation(each.object_id, NAMESPACE, 0, each.size_bytes) for each in uploaded]
        for location, each in zip(locations, uploaded, strict=True):
            assert await verify(self.store, location.key) == []
            assert len(self.store.objects[location.key]) == each.size_bytes
        assert self.budget.held_bytes == 0
        assert self.parts.uploads == {}, "no multipart upload is left open"
        return locations

    async def records(
        self, locations: Sequence[ObjectLocation], streams: Mapping[StreamId, StreamState]
    ) -> list[Record]:
        """Return all records of these objects, by stream and offset."""
        found: list[Record] = []
        for location in locations:
            for entry in await read_index(self.store, location.key, location.size_bytes):
                data = self.store.objects[location.key][entry.position :][: entry.size_bytes]
                for record in decode_block(location.key, entry, data).records_from(entry.start_offset):
                    state = streams.get(record.stream_id)
                    if state is not None and record.end_offset > state.start_offset:
                        found.append(
                            (
                                record.stream_id,
                                record.base_offset,
                                record.count,
                                record.epoch,
                                bytes(record.payload),
                            )
                        )
        return sorted(found)
