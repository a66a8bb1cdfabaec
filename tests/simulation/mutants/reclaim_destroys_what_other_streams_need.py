"""Planted bug: a stream set object is destroyed as soon as the pieces of the reclaimed streams in it are dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from ponor_controller.domains.objects import dead_objects
from ponor_metadata.image import MetadataImage
from ponor_runtime.identity import ObjectId, StreamId


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def of_these_streams(image: MetadataImage, stream_ids: Sequence[StreamId]) -> Iterator[ObjectId]:
        found: dict[ObjectId, None] = {}
        for stream_id in stream_ids:
            for object_id in map(ObjectId, image.stream_set_objects.ids_with(stream_id)):
                pieces = image.stream_set_objects.pieces_of(object_id)
                end = None if pieces is None else pieces.end_of(stream_id)
                start = dead_objects.start_of(image, stream_id)
                if end is not None and (start is None or end <= start):
                    found[object_id] = None
        yield from found

    monkeypatch.setattr(dead_objects, "_dead_set_objects", of_these_streams)
