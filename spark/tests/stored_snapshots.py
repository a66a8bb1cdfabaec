"""Partitions in real objects of a directory store, and snapshots of them like a controller's.

A record is one stream record whose payload does not matter to planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_spark.clip import AbortedRange
from ponor_spark.options import ClusterOptions, Edge, Options
from ponor_spark.snapshot import PIECE, HeldPiece, Lease, PartitionSnapshot, SegmentSlice, Snapshot
from ponor_spark.split import ObjectRun, WholeObject
from ponor_spark.stream_blocks import run_of
from ponor_spark.topics import Subscribe
from s3stream.objects.block import decode_block
from s3stream.objects.format import BlockEntry
from s3stream.objects.keys import object_key
from s3stream.objects.writer import ObjectWriter
from s3stream.records import TIMESTAMP_MIN, StreamRecord

NAMESPACE = "ponor-test"
TOPIC = "t"
TOPIC_ID = bytes(16)
LEASE = 17


class Written(NamedTuple):
    """A record of a stream: offsets [start, start + offsets), its largest timestamp, its payload, and the
    lower bound of its timestamps.
    """

    start: int
    offsets: int
    timestamp_ms: int = -1
    payload: bytes = b"payload"
    not_below_ms: int = TIMESTAMP_MIN

    @property
    def end(self) -> int:
        return self.start + self.offsets


@dataclass
class Store:
    """A directory store and its content."""

    directory: Path
    block_bytes_max: int = 512 << 10
    objects: int = 0
    pieces: dict[int, list[HeldPiece]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"file://{self.directory}"

    def put(self, *streams: tuple[int, Sequence[Written]]) -> int:
        """Put one object with these records of these streams; return its id."""
        self.objects += 1
        object_id = ObjectId(1_000 + self.objects)
        writer = ObjectWriter(object_id, block_bytes_max=self.block_bytes_max)
        for stream_id, records in sorted(streams):
            for one in records:
                writer.add(
                    StreamRecord(
                        StreamId(stream_id),
                        StreamEpoch(0),
                        one.start,
                        one.offsets,
                        one.timestamp_ms,
                        one.payload,
                        one.not_below_ms,
                    )
                )
        data = b"".join(writer.finish().buffers)
        path = self.path_of(object_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        for stream_id, records in streams:
            self.pieces.setdefault(stream_id, []).append(
                HeldPiece(object_id, len(data), records[0].start, records[-1].end, 0, 0, len(streams) == 1)
            )
        return object_id

    def path_of(self, object_id: int) -> Path:
        return self.directory / "objects" / (object_key(NAMESPACE, ObjectId(object_id)) + ".object")

    def snapshot(self, *partitions: PartitionSnapshot) -> Snapshot:
        """Return the size of an object."""
        pieces = {
            stream_id: b"".join(PIECE.pack(*one) for one in sorted(rows, key=lambda row: row.start_offset))
            for stream_id, rows in self.pieces.items()
        }
        lease = Lease(LEASE, "a test", 60_000, 5, 60_000, 0)
        return Snapshot("a cluster", 5, lease, self.url, partitions, (NAMESPACE,), pieces)


def partition_of(
    segments: Iterable[SegmentSlice],
    *,
    number: int = 0,
    start: int | None = None,
    aborted: tuple[AbortedRange, ...] = (),
    topic: str = TOPIC,
) -> PartitionSnapshot:
    """Return a partition with consecutive segments."""
    parts = tuple(segments)
    first = parts[0].base_offset if parts else 0
    return PartitionSnapshot(
        topic,
        TOPIC_ID,
        number,
        first if start is None else start,
        parts[-1].end_offset if parts else 0,
        parts,
        aborted,
        "leader:9092",
    )


def options(**changes: object) -> Options:
    """Return options of a batch that reads the whole topic."""
    given: dict[str, object] = {
        "cluster": ClusterOptions(controllers=("localhost:1",)),
        "topics": Subscribe((TOPIC,)),
        "start": Edge.EARLIEST,
        **changes,
    }
    return Options(**given)  # type: ignore[arg-type]


def blocks_of(store: Store, run: ObjectRun | WholeObject) -> list[BlockEntry]:
    """Return what an executor reads of a split."""
    if isinstance(run, WholeObject):
        run = run_of(run, (store.directory / "objects" / (run.key + ".object")).read_bytes())
    return list(run.blocks())


def records_of(store: Store, run: ObjectRun | WholeObject) -> list[StreamRecord]:
    """Return every record in the blocks of a run, after an executor's checks."""
    data = (store.directory / "objects" / (run.key + ".object")).read_bytes()
    if isinstance(run, WholeObject):
        run = run_of(run, data)
    found: list[StreamRecord] = []
    position = run.position
    for entry in run.blocks():
        assert entry.position == position, "blocks of a run lie side by side"
        block = decode_block(run.key, entry, data[position : position + entry.size_bytes])
        found += block.records_from(entry.start_offset)
        position += entry.size_bytes
    assert position == run.position + run.size_bytes
    return found
