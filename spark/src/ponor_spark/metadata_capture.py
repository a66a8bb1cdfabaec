"""Copy the rows of a snapshot from the metadata image: topics, streams, object pieces.

The copy runs between two batches of the subscription without an await, so all rows are of the same index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.read_index import Piece, find_pieces
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS, STREAMS_OF_PARTITION, StreamRow
from ponor_metadata.nouns.topics import (
    PARTITIONS,
    PARTITIONS_OF,
    TOPICS,
    TOPICS_OF_TENANT,
    PartitionRow,
    TopicRow,
)
from ponor_partition.segment import TXN
from ponor_runtime.host_port import join_host_port
from ponor_runtime.identity import DEFAULT_TENANT, StreamId

from ponor_spark.errors import StoredDataError
from ponor_spark.partition_layout import DATA_KINDS, META, CommittedRange
from ponor_spark.snapshot import PIECE
from ponor_spark.topics import TopicChoice, chosen_partitions

KINDS = (META, TXN, *DATA_KINDS)
PIECES_PER_LOOK = 1_000


@dataclass(frozen=True, slots=True)
class CapturedPartition:
    """A partition and its streams by tag `kind`; `leader` is HOST:PORT, or empty."""

    topic: str
    topic_id: bytes
    partition: int
    leader: str
    streams: Mapping[str, CommittedRange]


@dataclass(slots=True)
class CapturedMetadata:
    """Rows of all chosen partitions as of `index`. `pieces` as in `Snapshot`."""

    cluster_id: str
    index: int
    brokers: tuple[str, ...]
    partitions: list[CapturedPartition] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    pieces: dict[int, bytes] = field(default_factory=dict)


def capture(image: MetadataImage, choice: TopicChoice) -> CapturedMetadata:
    """Copy the rows of the chosen partitions.

    Raises:
        TopicMissingError: a topic or a partition does not exist.
    """
    topics = {topic.name: topic for topic in image[TOPICS].find(TOPICS_OF_TENANT, DEFAULT_TENANT)}
    counts = {name: _partition_count(image, topic) for name, topic in topics.items()}
    cluster = cluster_of(image)
    captured = CapturedMetadata("" if cluster is None else cluster.cluster_id, image.index, _brokers(image))
    packing = PiecePacking(image, captured)
    for name, number in chosen_partitions(choice, counts):
        topic_id = topics[name].topic_id
        streams = _streams_of(image, topic_id, number)
        for each in streams.values():
            packing.add(each)
        leader = _leader(image, image[PARTITIONS].get((topic_id, number)))
        captured.partitions.append(CapturedPartition(name, topic_id, number, leader, streams))
    return captured


class PiecePacking:
    """Encodes the pieces of streams as bytes; stores each namespace of object keys once."""

    def __init__(self, image: MetadataImage, captured: CapturedMetadata) -> None:
        self._image = image
        self._captured = captured
        self._numbers: dict[str, int] = {}

    def add(self, stream: CommittedRange) -> None:
        packed = bytearray()
        offset = stream.start_offset
        while offset < stream.end_offset:
            found = find_pieces(
                self._image, StreamId(stream.stream_id), offset, stream.end_offset, limit=PIECES_PER_LOOK
            )
            if not found:
                raise StoredDataError(
                    f"metadata: no object holds offset {offset} of stream {stream.stream_id};"
                    " `ponor object map` shows which objects hold which offsets"
                )
            for piece in found:
                packed += PIECE.pack(
                    piece.object_id,
                    piece.size_bytes,
                    piece.start_offset,
                    piece.end_offset,
                    self._number(piece.namespace),
                    piece.bucket_index,
                    self._is_all(piece),
                )
            offset = found[-1].end_offset
        self._captured.pieces[stream.stream_id] = bytes(packed)

    def _is_all(self, piece: Piece) -> bool:
        """Return whether the piece is the entire content of its object, which is then a stream object."""
        row = self._image[STREAM_OBJECTS].get(piece.object_id)
        if row is None:
            return False
        return (row.start_offset, row.end_offset) == (piece.start_offset, piece.end_offset)

    def _number(self, namespace: str) -> int:
        number = self._numbers.get(namespace)
        if number is None:
            number = self._numbers[namespace] = len(self._numbers)
            self._captured.namespaces.append(namespace)
        return number


def _partition_count(image: MetadataImage, topic: TopicRow) -> int:
    rows: Sequence[PartitionRow] = image[PARTITIONS].find(PARTITIONS_OF, topic.topic_id)
    return rows[-1].partition + 1 if rows else 0


def _streams_of(image: MetadataImage, topic_id: bytes, partition: int) -> dict[str, CommittedRange]:
    """Return streams by kind.

    If a kind has two streams, one of them is empty: it was created by an open whose answer was lost.
    """
    found: dict[str, CommittedRange] = {}
    rows: Sequence[StreamRow] = image[STREAMS].find(STREAMS_OF_PARTITION, (topic_id.hex(), str(partition)))
    for row in rows:
        kind = row.tags.get("kind", "")
        if kind in KINDS and (kind not in found or row.end_offset > found[kind].end_offset):
            found[kind] = CommittedRange(row.stream_id, row.start_offset, row.end_offset)
    return found


def _leader(image: MetadataImage, row: PartitionRow | None) -> str:
    node = None if row is None else image[NODES].get(row.leader_id)
    return (
        ""
        if node is None or node.fenced or not node.kafka_port
        else join_host_port(node.kafka_host, node.kafka_port)
    )


def _brokers(image: MetadataImage) -> tuple[str, ...]:
    return tuple(
        join_host_port(node.kafka_host, node.kafka_port)
        for node in image[NODES]
        if node.kafka_port and not node.fenced
    )
