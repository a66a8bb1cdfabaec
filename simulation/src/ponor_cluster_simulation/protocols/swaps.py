"""Swaps in committed batches: which records put outputs of a compaction in the place of its sources.

What lives here: reading alone, for the models' validation and for the ledger. A swap is written as objects destroyed, outputs committed, task ended, without anything in between; a task that ends
without either was given back, or nothing was left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ponor.metadata.v1 import records_pb2 as records

COMMITS: Final = ("stream_object_committed", "stream_set_object_committed")


@dataclass(frozen=True, slots=True)
class Swap:
    """One task's.

    Attributes:
        destroyed: the sources that were left, and outputs that nobody wants any more.
        outputs: the objects that were committed.
    """

    task_id: int
    destroyed: tuple[int, ...]
    outputs: tuple[int, ...]


def find_swaps(batch: Sequence[records.Record]) -> dict[int, Swap]:
    """The swap that each record of a batch belongs to, by the record's place."""
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
