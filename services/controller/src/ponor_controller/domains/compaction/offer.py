"""What a validator is offered: objects worth compacting. The port between validation and the memory of the leader."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ponor_metadata.nouns.compactions import CompactionKind, CompactionRow
from ponor_metadata.nouns.objects import ObjectRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, StreamId


class Offer(NamedTuple):
    """Objects to replace together: set objects of `node_id`, or stream objects of `stream_id`, in the order of their commits or offsets."""

    kind: CompactionKind
    node_id: NodeId
    stream_id: StreamId
    sources: tuple[ObjectRow, ...]
    score: float


class Offers(Protocol):
    """Knows what is worth a task. It may forget at any time: whatever it says is checked against the view."""

    def next(self, view: View, now_ms: int, source_bytes_max: int) -> Offer | None:
        """The best that is found with a bounded look; all sources are committed, and of no task. None: nothing now."""
        ...

    def given_up(self, row: CompactionRow, now_ms: int) -> None:
        """The task came to nothing: offer its first source not soon again, and then with fewer others."""
        ...
