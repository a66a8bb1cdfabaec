"""Offsets of a topic's partitions by object, from the cluster's metadata."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectState
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_metadata.nouns.topics import TOPICS
from ponor_runtime.identity import ObjectId, StreamId

DATA_STREAM = "log"


@dataclass(frozen=True, slots=True)
class Holding:
    """One object's offsets of one partition, [`start`, `end`)."""

    partition: int
    start: int
    end: int
    object_id: ObjectId


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object with data of the topic.

    `kind`: "stream" (one stream) or "stream set" (parts of many streams).
    """

    object_id: ObjectId
    kind: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicHoldings:
    """Data of the picture: holdings sorted by partition and offset, objects by id."""

    topic: str
    partitions: int
    holdings: list[Holding]
    objects: list[HeldObject]

    def end_of(self, partition: int) -> int:
        """Offset after the last one in an object; 0 if there is none."""
        return max((each.end for each in self.holdings if each.partition == partition), default=0)


def holdings_of(image: MetadataImage, topic: str, partitions: int) -> TopicHoldings:
    """Collect the holdings of a topic from the image."""
    lanes = _data_streams(image, topic)
    found: list[Holding] = []
    objects: list[HeldObject] = []
    for row in image[OBJECTS]:
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
    """Map the Data streams of the topic to partitions."""
    topic_ids = {row.topic_id.hex() for row in image[TOPICS] if row.name == topic}
    return {
        row.stream_id: int(row.tags["partition"])
        for row in image[STREAMS]
        if row.tags.get("topic") in topic_ids and row.tags.get("kind") == DATA_STREAM
    }


def _pieces(image: MetadataImage, object_id: ObjectId) -> tuple[str, list[tuple[StreamId, int, int]]]:
    one = image[STREAM_OBJECTS].get(object_id)
    if one is not None:
        return "stream", [(one.stream_id, one.start_offset, one.end_offset)]
    many = image[STREAM_SET_OBJECTS].get(object_id)
    if many is not None:
        return "stream set", [
            (piece.stream_id, piece.start_offset, piece.end_offset) for piece in many.ranges.decoded
        ]
    return "", []
