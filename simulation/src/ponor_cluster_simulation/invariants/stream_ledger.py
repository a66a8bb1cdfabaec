"""The ledger of nodes and streams: epochs, owners, ranges and committed data. Invariants 12 to 18."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ponor.metadata.v1 import records_pb2 as records

from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.protocols.compaction_steps import Swap


class Actor(NamedTuple):
    """The process whose operation a batch executes."""

    node_id: int
    node_epoch: int


class Piece(NamedTuple):
    """[start, end) of a stream in an object."""

    object_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Place:
    """The context of a committed record.

    Attributes:
        index, now_ms: index and cluster time of the batch.
        actor: the process whose operation the batch executes; None if the batch does not contain it.
        destroyed: objects that this batch destroys; the object ledger fills the list.
        swap: the compaction whose swap contains the record.
        replaced: the sources of the swap.
    """

    index: int
    now_ms: int
    actor: Actor | None
    destroyed: list[int]
    swap: Swap | None
    replaced: tuple[int, ...]


@dataclass(slots=True)
class StreamPage:
    """What is known of a stream."""

    epoch: int = -1
    owner: Actor | None = None
    """None while closed."""
    start: int = 0
    end: int = 0
    committed: int = 0
    """Sum of the committed lengths."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, start) of each range; a range ends where the next one begins."""
    pieces: list[Piece] = field(default_factory=list)


class StreamLedger:
    """The ledger of streams."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self.nodes: dict[int, int] = {}
        """Node to its newest epoch."""
        self.fenced: set[Actor] = set()
        self.recoverers: dict[Actor, Actor] = {}
        """Owner of each open object WAL to the process that may commit its content; at first the owner
        itself.
        """
        self.streams: dict[int, StreamPage] = {}
        self.abandoned: set[int] = set()
        """Streams of deleted topics that are not deleted yet."""
        self._ids_given: set[int] = set()

    def is_current(self, actor: Actor) -> bool:
        """Whether the process is the newest of its node and not fenced."""
        return self.nodes.get(actor.node_id) == actor.node_epoch and actor not in self.fenced

    def is_fenced(self, node_id: int) -> bool:
        """Whether the newest process of a node is fenced."""
        return Actor(node_id, self.nodes.get(node_id, 0)) in self.fenced

    # Records

    def node_registered(self, record: records.NodeRegistered, _: Place) -> None:
        """Check a registration."""
        before = self.nodes.get(record.node_id, 0)
        self._checks.require(
            13,
            record.node_epoch > before,
            f"node {record.node_id}: epoch {record.node_epoch} follows epoch {before}",
        )
        self.nodes[record.node_id] = record.node_epoch

    def node_fenced(self, record: records.NodeFenced, _: Place) -> None:
        """Record that a node was fenced."""
        self.fenced.add(Actor(record.node_id, record.node_epoch))

    def stream_created(self, record: records.StreamCreated, _: Place) -> None:
        """Check a new stream."""
        self._checks.require(
            20, record.stream_id not in self._ids_given, f"stream id {record.stream_id} was assigned before"
        )
        self._ids_given.add(record.stream_id)
        self.streams[record.stream_id] = StreamPage()

    def stream_opened(self, record: records.StreamOpened, _: Place) -> None:
        """Check a new owner."""
        page, name = self._page(record.stream_id), f"stream {record.stream_id}"
        actor = Actor(record.node_id, record.node_epoch)
        self._checks.require(
            13,
            record.stream_epoch > page.epoch,
            f"{name}: epoch {record.stream_epoch} follows epoch {page.epoch}",
        )
        self._checks.require(
            12, self.is_current(actor), f"{name}: opened by {actor}, which is fenced or replaced"
        )
        page.epoch, page.owner = record.stream_epoch, actor
        if page.ranges and page.ranges[-1][1] == page.end:
            page.ranges.pop()
        page.ranges.append((record.stream_epoch, page.end))
        in_order = all(
            a[0] < b[0] and a[1] < b[1] for a, b in zip(page.ranges, page.ranges[1:], strict=False)
        )
        self._checks.require(16, in_order, f"{name}: the ranges {page.ranges} are not in order")

    def stream_closed(self, record: records.StreamClosed, _: Place) -> None:
        """Check the close of a stream."""
        page, name = self._page(record.stream_id), f"stream {record.stream_id}"
        self._checks.require(12, page.owner is not None, f"{name}: closed, but it was not open")
        self._checks.require(
            14,
            record.stream_epoch == page.epoch,
            f"{name}: a close names epoch {record.stream_epoch}, but the stream is at epoch {page.epoch}",
        )
        self._checks.require(
            18,
            page.end == page.committed,
            f"{name}: the end is {page.end}, but {page.committed} offsets were committed",
        )
        page.owner = None

    def stream_trimmed(self, record: records.StreamTrimmed, _: Place) -> None:
        """Check a new start."""
        page, start = self._page(record.stream_id), record.start_offset
        holds = page.start <= start <= page.end
        self._checks.require(
            15,
            holds,
            f"stream {record.stream_id}: trimmed to {start}, which is outside of [{page.start}, {page.end}]",
        )
        page.start = start

    def stream_deleted(self, record: records.StreamDeleted, _: Place) -> None:
        """Remove a stream."""
        self._page(record.stream_id)
        del self.streams[record.stream_id]
        self.abandoned.discard(record.stream_id)

    def committed(self, stream_id: int, piece: Piece, actor: Actor | None, writer: Actor) -> None:
        """Check a committed object with a piece of the stream.

        `actor` is the caller, or None if the batch does not contain it. The object was prepared for `writer`.
        """
        page, name = self._page(stream_id), f"stream {stream_id}"
        for each in (writer, actor):
            if each is not None:
                self._checks.require(
                    14,
                    self.is_current(each),
                    f"{name}: {each} committed, but this process is fenced or replaced",
                )
                is_owner = page.owner is not None and self._acts_for(each, page.owner)
                self._checks.require(14, is_owner, f"{name}: {each} committed, but the owner is {page.owner}")
        self._checks.require(
            17,
            piece.start == page.end,
            f"{name}: {piece} does not begin at the end of the stream, {page.end}",
        )
        self._checks.require(17, piece.start < piece.end, f"{name}: {piece} is empty")
        page.end = piece.end
        page.committed += piece.end - piece.start
        page.pieces.append(piece)

    def replaced(self, sources: Iterable[int], pieces: Iterable[tuple[int, Piece]]) -> None:
        """Check a compaction: each stream's pieces still cover start to end without gap or overlap.

        Args:
            sources: the replaced objects.
            pieces: (stream, piece) of the new objects.
        """
        gone = set(sources)
        arrived: dict[int, list[Piece]] = {}
        for stream_id, piece in pieces:
            self._page(stream_id)
            arrived.setdefault(stream_id, []).append(piece)
        for stream_id, page in self.streams.items():
            if stream_id not in arrived and not any(piece.object_id in gone for piece in page.pieces):
                continue
            left = [piece for piece in page.pieces if piece.object_id not in gone and piece.end > page.start]
            page.pieces = sorted([*left, *arrived.get(stream_id, ())], key=lambda piece: piece.start)
            at = page.start
            for piece in page.pieces:
                follows = piece.start == at or (at == page.start and piece.start < at)
                self._checks.require(
                    17,
                    follows,
                    f"stream {stream_id} of [{page.start}, {page.end}): {piece} leaves a gap or an"
                    f" overlap at {at}",
                )
                at = max(at, piece.end)
            self._checks.require(
                17,
                at == page.end,
                f"stream {stream_id}: its objects end at {at}, but the stream ends at {page.end}",
            )

    # Queries

    def _acts_for(self, actor: Actor, owner: Actor) -> bool:
        """Whether `actor` may act for `owner`.

        For an object WAL, only the owner or, once assigned, the recoverer may act; for a file WAL, every
        process of the node may.
        """
        recoverer = self.recoverers.get(owner)
        return actor.node_id == owner.node_id if recoverer is None else actor == recoverer

    def is_alive(self, stream_id: int, piece: Piece) -> bool:
        """Whether a piece has offsets that are not trimmed."""
        page = self.streams.get(stream_id)
        return page is not None and piece.end > page.start

    def _page(self, stream_id: int) -> StreamPage:
        page = self.streams.get(stream_id)
        self._checks.require(12, page is not None, f"stream {stream_id} does not exist")
        assert page is not None
        return page
