"""Find stream set objects that are mostly trimmed but still keep a little live data.

An object is destroyed when its last live offset is trimmed. A stream set object contains pieces of thousands
of streams, so one stream with a long retention keeps the bytes of all others in the store
(docs/design/compaction.md#mostly-trimmed-objects). Rewriting the object without the trimmed data frees those
bytes.

The metadata does not contain the bytes of each stream in an object. The estimate of the garbage is the larger
of two ratios: trimmed offsets to all offsets, and completely trimmed pieces to all pieces. A wrong estimate
costs one unnecessary copy: a rewritten object contains no trimmed data, so it is not selected again soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import gcd
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS, StreamSetObjectRow
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.tables.ranges import decode_ranges
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import ObjectId, StreamId

from ponor_controller.settings import CompactionSettings

OBJECTS_PER_STEP: Final = 24
PIECES_IN_SURVEY: Final = 48
"""Number of pieces that a survey samples in an object. This takes 0.2 ms for an object of a few thousand
pieces.
"""
PIECES_BEFORE_OFFER: Final = 1_024
FOUND_MAX: Final = 1_000
"""Bound of the queue of found objects; the next survey finds the others."""
GOLDEN: Final = 0.6180339887
"""Distance between two sampled pieces as a share of all pieces; the sample wraps around. With the golden
ratio the samples are spread evenly and do not follow a periodic pattern of the streams."""
LIGHT_KINDS: Final = frozenset({"meta", "time", "time.cleaned"})
"""Values of the tag `kind` of streams that contain only a few bytes per segment
(docs/formats/partition-meta.md). These streams are ignored: they are trimmed last, and each of their offsets
would count like a record."""


class GarbageRatio:
    """Surveys the image repeatedly. `Offering` consumes `mostly_trimmed`, the queue of found objects."""

    def __init__(self, image: MetadataImage, settings: CompactionSettings) -> None:
        self._image = image
        self._settings = settings
        self.mostly_trimmed: deque[ObjectId] = deque(maxlen=FOUND_MAX)
        self._last: ObjectId | None = None

    def reset(self) -> None:
        """Discard all results and start again."""
        self.mostly_trimmed.clear()
        self._last = None

    def step(self) -> bool:
        """Read some more objects. Returns True if a survey is complete."""
        rows = self._image[STREAM_SET_OBJECTS].after(self._last, OBJECTS_PER_STEP)
        for set_object in rows:
            self._last = set_object.object_id
            share = trimmed_share(self._image, set_object, PIECES_IN_SURVEY)
            if self.is_enough(share) and set_object.object_id not in self.mostly_trimmed:
                self.mostly_trimmed.append(set_object.object_id)
        if len(rows) == OBJECTS_PER_STEP:
            return False
        self._last = None
        return True

    def is_enough(self, share: float) -> bool:
        """Whether an object of which `share` is trimmed should be rewritten."""
        return 100 * share >= self._settings.compaction_trimmed_percent


def trimmed_share(view: View, set_object: StreamSetObjectRow, pieces_max: int) -> float:
    """Estimate from a sample the trimmed share of an object, 0 to 1: the share of its offsets or of its
    pieces, whichever is larger.
    """
    # `ranges.decoded` would keep the result in memory, and a survey reads every object.
    stream_ids, starts, ends = decode_ranges(set_object.ranges.data).columns
    pieces = pieces_gone = offsets = offsets_gone = 0
    for at in _sample(len(starts), pieces_max):
        start, end = starts[at], ends[at]
        stream = view[STREAMS].get(StreamId(stream_ids[at]))
        if stream is not None and stream.tags.get("kind") in LIGHT_KINDS:
            continue
        kept_from = end if stream is None else min(max(stream.start_offset, start), end)
        pieces, pieces_gone = pieces + 1, pieces_gone + (kept_from == end)
        offsets, offsets_gone = offsets + end - start, offsets_gone + kept_from - start
    return max(pieces_gone / pieces, offsets_gone / offsets) if pieces else 0.0


def _sample(count: int, wanted: int) -> Iterator[int]:
    if count <= wanted:
        return iter(range(count))
    stride = int(count * GOLDEN)
    while gcd(stride, count) > 1:
        stride += 1
    return (at * stride % count for at in range(wanted))
