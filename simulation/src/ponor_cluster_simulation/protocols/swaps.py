"""Finds swaps in committed batches: the records by which the outputs of a compaction replace its
sources.

A swap is a sequence without gaps: destroyed objects, committed outputs, ended task. A task that
ends without them was given back, or nothing of it was left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ponor.metadata.v1 import records_pb2 as records

COMMITS: Final = ("stream_object_committed", "stream_set_object_committed")


@dataclass(frozen=True, slots=True)
class Swap:
    """The swap of one task.

    Attributes:
        destroyed: the remaining sources, and unneeded outputs.
        outputs: the committed objects.
    """

    task_id: int
    destroyed: tuple[int, ...]
    outputs: tuple[int, ...]


def find_swaps(batch: Sequence[records.Record]) -> dict[int, Swap]:
    """Map the position of each record of a swap to the swap."""
    found: dict[int, Swap] = {}
    for at, record in enumerate(batch):
        if record.WhichOneof("kind") != "compaction_ended":
            continue
        destroyed: list[int] = []
        outputs: list[int] = []
        first = at
        while first > 0 and batch[first - 1].WhichOneof("kind") in COMMITS:
            first -= 1
            kind = batch[first].WhichOneof("kind")
            outputs.append(getattr(batch[first], str(kind)).object_id)
        while first > 0 and batch[first - 1].WhichOneof("kind") == "objects_destroyed":
            first -= 1
            destroyed.extend(batch[first].objects_destroyed.object_ids)
        if first < at:
            swap = Swap(record.compaction_ended.task_id, tuple(destroyed), tuple(outputs))
            found.update(dict.fromkeys(range(first, at + 1), swap))
    return found
