"""Find objects without live data after streams were trimmed or deleted.

A stream object is dead when its end offset is at or below the start offset of its stream. A stream set object
is dead when this holds for all of its pieces. A dead object remains dead: starts only rise, and nothing is
added to an object. The search may therefore pause between any two rows and continue in a newer image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_runtime.identity import ObjectId, StreamId

IDS_PER_VISIT: Final = 16
"""Reading this many ids from an index costs about as much as reading one row."""
PIECES_PER_VISIT: Final = 256
"""Decoding this many pieces costs about as much as reading one row. An object's pieces are decoded
together."""


def dead_objects(image: MetadataImage, stream_ids: Sequence[StreamId]) -> Iterator[ObjectId | None]:
    """Search for dead objects that contain data of one of these streams.

    Yields:
        The id of each dead object once. None after reading another row, and after other work of that cost, so
            that the caller can limit the work of one turn.
    """
    for stream_id in stream_ids:
        yield from _dead_stream_objects(image, stream_id)
    yield from _dead_set_objects(image, stream_ids)


def start_of(image: MetadataImage, stream_id: StreamId) -> int | None:
    """The stream's first live offset; None if the stream was deleted."""
    stream = image[STREAMS].get(stream_id)
    return None if stream is None else stream.start_offset


def _dead_stream_objects(image: MetadataImage, stream_id: StreamId) -> Iterator[ObjectId | None]:
    for object_id in map(ObjectId, image.packed_stream_objects.ids_of(stream_id)):
        row, start = image[STREAM_OBJECTS].get(object_id), start_of(image, stream_id)
        if row is None:
            yield None
        elif start is None or row.end_offset <= start:
            yield object_id
        else:
            break  # later objects have higher ends
    yield None


def _dead_set_objects(image: MetadataImage, stream_ids: Sequence[StreamId]) -> Iterator[ObjectId | None]:
    """Visit each stream set object once, even if it contains several of the streams."""
    candidates: dict[ObjectId, None] = {}
    for stream_id in stream_ids:
        found = image.packed_stream_set_objects.ids_with(stream_id)
        candidates.update(dict.fromkeys(map(ObjectId, found)))
        for _ in range(len(found) // IDS_PER_VISIT + 1):
            yield None
    for object_id in candidates:
        pieces = image.packed_stream_set_objects.pieces_of(object_id)
        if pieces is None:
            yield None
            continue
        for _ in range(len(pieces) // PIECES_PER_VISIT):
            yield None
        for held_id, _, end in pieces.runs():
            start = start_of(image, StreamId(held_id))
            if start is not None and end > start:
                yield None
                break
            yield None
        else:
            yield object_id
