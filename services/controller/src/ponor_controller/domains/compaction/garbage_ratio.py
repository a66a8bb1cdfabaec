"""Which stream set objects are worn: most of what they hold was trimmed, and the little that was not keeps all of it in the bucket.

What lives here: a walk over all of them, as brokers uploaded them or compaction made them, a few at a time, on samples. An object goes by itself with the last offset that is wanted of it. But it holds pieces of thousands of streams, and one that
keeps its data (a Meta stream, a topic with a longer retention) keeps the bytes of all the others: a thousand partitions of 2 MiB each kept fifteen gigabytes before this was looked at.
Written again without what was trimmed such an object is small (docs/design/compaction.md#mostly-trimmed-objects).

Bytes by stream are not in the metadata. Offsets and pieces of streams that hold records are, and stand for them, whichever says more: a topic of small records that is kept for ever has few bytes and many offsets, and no piece of a compacted object has more bytes than
the size from which a stream gets an object of its own. A wrong guess costs one copy: whatever was trimmed is gone after it, so the object is not worn any more.
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
PIECES_AT_FIRST: Final = 48
"""Looked at in a walk: a fifth of a millisecond for an object of some thousand pieces."""
PIECES_BEFORE_OFFER: Final = 1_024
WORN_MAX: Final = 1_000
"""Objects that are remembered; the next walk finds the others."""
GOLDEN: Final = 0.6180339887
"""Of the pieces are between two of a sample, around and around: however many are taken, they lie evenly, and no period of the streams meets it."""
LIGHT_KINDS: Final = frozenset({"meta", "time", "time.cleaned"})
"""Tag `kind` of streams that hold some bytes for each segment (docs/formats/partition-meta.md), not the records. They are trimmed last, and would count as much as a batch of records."""


class Wear:
    """Walks over the image for ever. `worn` is taken from by whoever offers."""

    def __init__(self, image: MetadataImage, settings: CompactionSettings) -> None:
        self._image = image
        self._settings = settings
        self.worn: deque[ObjectId] = deque(maxlen=WORN_MAX)
        self._last: ObjectId | None = None

    def forget(self) -> None:
        """Begin anew: what was found is of another time."""
        self.worn.clear()
        self._last = None

    def step(self) -> bool:
        """Look at a few more objects; whether this finished a walk."""
        rows = self._image[STREAM_SET_OBJECTS].after(self._last, OBJECTS_PER_STEP)
        for several in rows:
            self._last = several.object_id
            share = trimmed_share(self._image, several, PIECES_AT_FIRST)
            if self.is_enough(share) and several.object_id not in self.worn:
                self.worn.append(several.object_id)
        if len(rows) == OBJECTS_PER_STEP:
            return False
        self._last = None
        return True

    def is_enough(self, share: float) -> bool:
        """Whether an object of which this share is trimmed should be written again."""
        return 100 * share >= self._settings.compaction_worn_percent


def trimmed_share(view: View, several: StreamSetObjectRow, pieces_max: int) -> float:
    """Of what the object holds, 0 to 1, by a sample of its pieces: of the offsets, or of the pieces if more of them are gone whole."""
    # Not by `ranges.decoded`, which stays in memory: every object is looked at, few are searched.
    stream_ids, starts, ends = decode_ranges(several.ranges.data).columns
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
