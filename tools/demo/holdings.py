"""Which objects hold which offsets of which partitions, as the cluster's metadata says."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_metadata.image import MetadataImage
from ponor_metadata.rows import ObjectState
from ponor_runtime.identity import ObjectId, StreamId

DATA_STREAM = "log"


@dataclass(frozen=True, slots=True)
class Holding:
    """One object's part of one partition: offsets from `start` to below `end`."""

    partition: int
    start: int
    end: int
    object_id: ObjectId


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object that holds some of the topic. `kind`: "stream" (one stream) or "stream set" (pieces of many)."""

    object_id: ObjectId
    kind: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicHoldings:
    """Everything the picture shows; holdings in order of partition and offset, objects in order of their ids."""

    topic: str
    partitions: int
    holdings: list[Holding]
    objects: list[HeldObject]

    def end_of(self, partition: int) -> int:
        """One past the last offset that is in an object; 0 if none is."""
        return max((each.end for each in self.holdings if each.partition == partition), default=0)


def holdings_of(image: MetadataImage, topic: str, partitions: int) -> TopicHoldings:
    """Read the image."""
    lanes = _data_streams(image, topic)
    found: list[Holding] = []
    objects: list[HeldObject] = []
    for row in image.objects:
        if row.state is not ObjectState.COMMITTED:
            continue
        kind, pieces = _pieces(image, row.object_id)
        held = [
            Holding(lanes[stream_id], start, end, row.object_id)
            for stream_id, start, end in pieces
            if stream_id in lanes
        ]
        if held:
            found.extend(held)
            objects.append(HeldObject(row.object_id, kind, row.size_bytes))
    return TopicHoldings(
        topic,
        partitions,
        sorted(found, key=lambda each: (each.partition, each.start)),
        sorted(objects, key=lambda each: each.object_id),
    )


def _data_streams(image: MetadataImage, topic: str) -> dict[StreamId, int]:
    """The Data streams of the topic's partitions."""
    topic_ids = {row.topic_id.hex() for row in image.topics if row.name == topic}
    return {
        row.stream_id: int(row.tags["partition"])
        for row in image.streams
        if row.tags.get("topic") in topic_ids and row.tags.get("kind") == DATA_STREAM
    }


def _pieces(image: MetadataImage, object_id: ObjectId) -> tuple[str, list[tuple[StreamId, int, int]]]:
    one = image.stream_objects.get(object_id)
    if one is not None:
        return "stream", [(one.stream_id, one.start_offset, one.end_offset)]
    many = image.stream_set_objects.get(object_id)
    if many is not None:
        return "stream set", [
            (piece.stream_id, piece.start_offset, piece.end_offset) for piece in many.ranges.decoded
        ]
    return "", []
