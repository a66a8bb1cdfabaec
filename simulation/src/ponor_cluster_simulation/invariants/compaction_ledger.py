"""The ledger of compactions and snapshot leases: invariants 26, 35 and 36.

The protocol rules check that the outputs cover all offsets (`protocols.compactions`). This ledger compares
the stored bytes. A compaction moves whole blocks: each block of an output is one source block, or several
adjacent ones, byte for byte. Each source block with live data is in an output, and the output's index
describes its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import ObjectId
from ponor_simulation.object_store import SimBucket
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import decode_block
from s3stream.objects.index import decode_footer, decode_index
from s3stream.objects.keys import object_key

from ponor_cluster_simulation.invariants.object_ledger import ObjectLedger, ObjectPage
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.invariants.stream_ledger import Actor, Place, StreamLedger
from ponor_cluster_simulation.protocols.objects import Phase


class Stored(NamedTuple):
    """A block as it is stored in an object."""

    end: int
    data: bytes


Blocks: TypeAlias = dict[tuple[int, int], Stored]
"""Stored blocks by stream and first offset."""


@dataclass(slots=True)
class TaskPage:
    """The state of a task."""

    kind: int
    node_id: int
    sources: tuple[int, ...]
    worker: Actor
    token: int


class CompactionLedger:
    """The ledger of compactions.

    Attributes:
        swaps: number of swaps by kind of task.
        given_again: number of leases after the first one of each task.
        over_some: number of swaps of tasks that had lost some sources.
        without_outputs: number of swaps without outputs.
    """

    def __init__(
        self, checks: Checks, streams: StreamLedger, objects: ObjectLedger, bucket: SimBucket | None
    ) -> None:
        self._checks = checks
        self._streams = streams
        self._objects = objects
        self._bucket = bucket
        self.tasks: dict[int, TaskPage] = {}
        self.swaps: dict[int, int] = {}
        self.given_again = self.over_some = self.without_outputs = 0
        self.swapped_at = 0
        """Index of the newest swap."""

    def sources_of(self, task_id: int) -> tuple[int, ...]:
        """Return the sources of a task; empty if the task is unknown."""
        task = self.tasks.get(task_id)
        return () if task is None else task.sources

    def compaction_leased(self, record: records.CompactionLeased, _: Place) -> None:
        """Check a lease of a task."""
        worker = Actor(record.worker_id, record.worker_epoch)
        name = f"compaction {record.task_id}"
        before = self.tasks.get(record.task_id)
        self._checks.require(
            35, self._streams.is_current(worker), f"{name}: the worker {worker} is fenced or replaced"
        )
        expected = 1 if before is None else before.token + 1
        self._checks.require(
            35, record.token == expected, f"{name}: the token is {record.token} instead of {expected}"
        )
        self.given_again += before is not None
        page = TaskPage(record.kind, record.node_id, tuple(record.source_ids), worker, record.token)
        for source in page.sources:
            phase = self._objects.objects[source].phase
            self._checks.require(35, phase is Phase.COMMITTED, f"{name}: its source {source} is {phase.name}")
        for other_id, other in self.tasks.items():
            shared = set(other.sources) & set(page.sources) if other_id != record.task_id else None
            self._checks.require(35, not shared, f"{name} and {other_id} share the sources {shared}")
        self.tasks[record.task_id] = page

    def compaction_ended(self, record: records.CompactionEnded, place: Place) -> None:
        """Check the end of a task; with a swap its outputs replace its sources."""
        actor, swap = place.actor, place.swap
        task = self.tasks.pop(record.task_id, None)
        name = f"compaction {record.task_id}"
        self._checks.require(35, task is not None, f"{name} ended twice")
        if swap is None or task is None:
            return
        self._checks.require(35, actor == task.worker, f"{actor} committed {name} of {task.worker}")
        sources = [each for each in task.sources if each in swap.destroyed]
        self.swaps[task.kind] = self.swaps.get(task.kind, 0) + 1
        self.over_some += len(sources) < len(task.sources)
        self.without_outputs += not swap.outputs
        self.swapped_at = place.index
        for output in swap.outputs:
            writer = self._objects.objects[output].writer
            self._checks.require(35, writer == actor, f"{name}: object {output} was prepared for {writer}")
        if self._bucket is not None:
            self._compare(name, sources, swap.outputs, all_there=len(sources) == len(task.sources))
        self._streams.replaced(
            sources, [piece for output in swap.outputs for piece in self._objects.objects[output].pieces]
        )

    def _compare(self, name: str, sources: Iterable[int], outputs: Iterable[int], *, all_there: bool) -> None:
        old: Blocks = {}
        for source in sources:
            old.update(self._blocks(source))
        taken: dict[tuple[int, int], None] = {}
        for output in outputs:
            blocks = self._blocks(output, proven=True)
            self._pieces_are_blocks(name, output, blocks)
            for (stream_id, start), block in blocks.items():
                pieces = _pieces(old, stream_id, start, block.end)
                if not pieces and not all_there:
                    pieces = self._live_pieces(old, stream_id, start, block.end)
                twice = next((at for at in pieces if at in taken), None)
                self._checks.require(
                    26, twice is None, f"{name}: the outputs contain the block at {twice} twice"
                )
                taken.update(dict.fromkeys(pieces))
                known = b"".join(old[at].data for at in pieces)
                excused = not all_there and not self._is_wanted(stream_id, block.end)
                is_whole = bool(pieces) and pieces[0][1] == start
                same = block.data == known if is_whole else block.data.endswith(known) if pieces else excused
                self._checks.require(
                    26,
                    same,
                    f"{name}: block {(stream_id, start, block.end)} of the outputs is not that of the"
                    " sources",
                )
        for (stream_id, start), block in old.items():
            kept = (stream_id, start) in taken or not self._is_wanted(stream_id, block.end)
            self._checks.require(
                26, kept, f"{name}: block {(stream_id, start, block.end)} of the sources is in no output"
            )

    def _live_pieces(self, old: Blocks, stream_id: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the source blocks of an output block whose first part was trimmed with a removed source."""
        found = sorted(at for stream, at in old if stream == stream_id and start < at < end)
        if not found or self._is_wanted(stream_id, found[0]):
            return []
        return _pieces(old, stream_id, found[0], end)

    def _pieces_are_blocks(self, name: str, output: int, blocks: Blocks) -> None:
        for stream_id, piece in self._objects.objects[output].pieces:
            at = piece.start
            for (stream, start), block in sorted(blocks.items()):
                if stream == stream_id and start <= at < block.end:
                    at = block.end
            self._checks.require(
                26,
                at >= piece.end,
                f"{name}: the blocks of object {output} end at {at} of stream {stream_id}, before the"
                f" end of {piece}",
            )

    def _blocks(self, object_id: int, *, proven: bool = False) -> Blocks:
        """Decode the blocks of a stored object. With `proven` each block must match its index entry."""
        assert self._bucket is not None
        key = object_key(self._objects.objects[object_id].namespace, ObjectId(object_id))
        data = self._bucket.objects.get(key)
        self._checks.require(
            22, data is not None, f"object {object_id} of a committed compaction is not in the store"
        )
        assert data is not None
        footer = decode_footer(key, ObjectId(object_id), data, len(data))
        blocks: Blocks = {}
        for each in decode_index(key, footer, data[footer.index_position :][: footer.index_bytes]):
            block = Stored(each.end_offset, data[each.position :][: each.size_bytes])
            if proven:
                try:
                    decode_block(key, each, block.data)
                except ObjectCorruptError as damage:
                    self._checks.require(26, False, f"{key} was committed and cannot be read: {damage}")
            blocks[int(each.stream_id), each.start_offset] = block
        return blocks

    def _is_wanted(self, stream_id: int, end: int) -> bool:
        page = self._streams.streams.get(stream_id)
        return page is not None and end > page.start


def _pieces(blocks: Blocks, stream_id: int, start: int, end: int) -> list[tuple[int, int]]:
    """The consecutive blocks that contain exactly [start, end) of a stream; empty if there are none."""
    found: list[tuple[int, int]] = []
    at = start
    while at < end and (stream_id, at) in blocks:
        found.append((stream_id, at))
        at = blocks[stream_id, at].end
    return found if at == end else []


@dataclass(slots=True)
class LeasePage:
    """A lease: the leased index, its start and its end."""

    index: int
    begun_at_ms: int
    until_ms: int


class SnapshotLedger:
    """The ledger of snapshot leases.

    An object that was committed at the leased index stays until the lease ends, and no lease ends early.

    Attributes:
        is_closed: whether the reader of a lease requested its end.
    """

    def __init__(self, checks: Checks, objects: ObjectLedger, pinned_bytes_max: int) -> None:
        self._checks = checks
        self._objects = objects
        self._pinned_bytes_max = pinned_bytes_max
        self.is_closed: Callable[[int], bool] = lambda _: False
        self.leases: dict[int, LeasePage] = {}
        self.leased = 0
        self.kept = 0
        """Number of checks while a lease was live."""

    def snapshot_leased(self, record: records.SnapshotLeased, _: Place) -> None:
        """Record a lease."""
        self.leases[record.lease_id] = LeasePage(record.index, record.begun_at_ms, record.leased_until_ms)
        self.leased += 1

    def snapshot_renewed(self, record: records.SnapshotRenewed, place: Place) -> None:
        """Check a renewal."""
        page, name = self.leases.get(record.lease_id), f"lease {record.lease_id} of a snapshot"
        self._checks.require(36, page is not None, f"{name} was renewed after its end")
        assert page is not None
        self._checks.require(
            36,
            place.now_ms <= page.until_ms <= record.leased_until_ms,
            f"{name} was valid until {page.until_ms} and was renewed at {place.now_ms} until"
            f" {record.leased_until_ms}",
        )
        page.until_ms = record.leased_until_ms

    def snapshot_released(self, record: records.SnapshotReleased, place: Place) -> None:
        """Check why a lease ended: its reader requested the end, it expired, or it kept too many bytes."""
        page, name = self.leases.pop(record.lease_id, None), f"lease {record.lease_id} of a snapshot"
        self._checks.require(36, page is not None, f"{name} ended twice")
        assert page is not None
        if place.now_ms >= page.until_ms or self.is_closed(record.lease_id):
            return
        kept_bytes = self._objects.destroyed_bytes_since(page.begun_at_ms)
        self._checks.require(
            36,
            kept_bytes > self._pinned_bytes_max,
            f"{name} until {page.until_ms} ended at {place.now_ms}; it keeps {kept_bytes} bytes",
        )

    def require_unpinned(self, object_id: int, page: ObjectPage, what: str) -> None:
        """Check that no lease needs an object that a collector claims or deletes."""
        if page.committed_at_index == 0:
            return
        for lease_id, lease in self.leases.items():
            self.kept += 1
            named = page.committed_at_index <= lease.index
            gone = page.phase is not Phase.COMMITTED and page.destroyed_at_index <= lease.index
            self._checks.require(
                36,
                not named or gone,
                f"object {object_id} was {what}, and lease {lease_id} reads index {lease.index}: the"
                " object was"
                f" committed at {page.committed_at_index} and destroyed at {page.destroyed_at_index}",
            )
