"""The overlay: the image as it will be when everything that the leader proposed is committed.

What lives here: the rows that uncommitted batches touched, kept beside the image. The leader validates new requests against it; nothing else
ever reads it. A commit applies the batch to the image by the same code as on every other process and forgets the rows that no later batch
touched; dropping forgets all, which is the same as if nothing had been proposed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata.apply import apply_batch, apply_records, require_next
from ponor_metadata.image import MetadataImage
from ponor_metadata.tables import Index, Schema, Table

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


@dataclass(frozen=True, slots=True)
class ProposedBatch:
    """A batch that is not committed yet, and its bytes as they stand in the log."""

    batch: RecordBatch
    encoded: bytes


class Overlay:
    """Fulfils `ponor_metadata.view.View` for the leader."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._proposed: deque[ProposedBatch] = deque()
        self._open: RecordBatch | None = None
        self.clusters = OverlayTable(image.clusters, self)
        self.features = OverlayTable(image.features, self)
        self.tenants = OverlayTable(image.tenants, self)
        self.counters = OverlayTable(image.counters, self)
        self.nodes = OverlayTable(image.nodes, self)
        self.streams = OverlayTable(image.streams, self)
        self.objects = OverlayTable(image.objects, self)
        self.stream_objects = OverlayTable(image.stream_objects, self)
        self.stream_set_objects = OverlayTable(image.stream_set_objects, self)
        self.keys = OverlayTable(image.keys, self)
        self.topics = OverlayTable(image.topics, self)
        self.partitions = OverlayTable(image.partitions, self)
        self.operations = OverlayTable(image.operations, self)
        self.broker_configs = OverlayTable(image.broker_configs, self)
        self.quorum = OverlayTable(image.quorum, self)

    @property
    def image(self) -> MetadataImage:
        """What is committed."""
        return self._image

    @property
    def index(self) -> int:
        """Index of the open batch, else of the newest proposed one, or the image's."""
        if self._open is not None:
            return self._open.index
        return self._proposed[-1].batch.index if self._proposed else self._image.index

    @property
    def cluster_time_ms(self) -> int:
        """Cluster clock of that batch."""
        if self._open is not None:
            return self._open.cluster_time_ms
        return self._proposed[-1].batch.cluster_time_ms if self._proposed else self._image.cluster_time_ms

    @property
    def proposed_batches(self) -> int:
        """How many batches wait for their commit."""
        return len(self._proposed)

    @property
    def touched_rows(self) -> int:
        """How many rows the overlay holds beside the image's."""
        return sum(table.touched_rows for table in self._tables())

    def propose(self, batch: RecordBatch) -> bytes:
        """Apply the next batch to this view only.

        Returns:
            The batch's bytes, to be written to the log: these exact bytes, because the digest runs over them.
        """
        assert self._open is None, "a batch is open"
        apply_batch(self, batch)
        return self._proposed[-1].encoded

    def open(self, batch: RecordBatch) -> None:
        """Begin the next batch, without records; `extend` adds those of one operation after the other, each seen by the next, and `seal` ends it."""
        assert self._open is None, "a batch is open"
        assert not batch.records
        require_next(self, batch)
        self._open = batch

    def extend(self, records: Sequence[Record]) -> None:
        """Apply records to this view only, and put them into the open batch."""
        batch = self._open
        assert batch is not None, "no batch is open"
        apply_records(self, records)
        batch.records.extend(records)

    def seal(self) -> ProposedBatch:
        """The open batch is complete, and has its bytes, as those of `propose`."""
        batch, self._open = self._open, None
        assert batch is not None, "no batch is open"
        assert batch.records, "a batch without records"
        self.begin(batch)
        return self._proposed[-1]

    def begin(self, batch: RecordBatch) -> None:
        """See `View.begin`."""
        self._proposed.append(ProposedBatch(batch, batch.SerializeToString(deterministic=True)))

    def commit(self, index: int) -> list[ProposedBatch]:
        """Everything up to `index` is committed: apply it to the image, and forget what only it touched.

        Returns:
            The batches that were committed by this, for subscribers.
        """
        newest = self._proposed[-1].batch.index if self._proposed else self._image.index
        assert index <= newest, f"batch {index} was never proposed; the newest is {newest}"
        committed: list[ProposedBatch] = []
        while self._proposed and self._proposed[0].batch.index <= index:
            proposed = self._proposed.popleft()
            self._image.apply_committed(proposed.encoded, proposed.batch)
            committed.append(proposed)
        for table in self._tables():
            table.forget(index)
        return committed

    def drop(self) -> None:
        """Forget everything that is not committed, as if it had never been proposed."""
        self._proposed.clear()
        self._open = None
        for table in self._tables():
            table.forget(None)

    def _tables(self) -> Iterator[OverlayTable[Any, Any]]:
        return (value for value in vars(self).values() if isinstance(value, OverlayTable))


class _Touched(NamedTuple, Generic[R]):
    """What uncommitted batches made of a row (None: deleted), and the newest of them."""

    row: R | None
    batch_index: int


class Merged(Sequence[R], Generic[R]):
    """Rows of the image's index without those at `hidden` orders, and `shown` among them. Made as it is read: few look at all of it."""

    __slots__ = ("_base", "_hidden", "_order", "_shown")

    def __init__(
        self, base: Sequence[R], hidden: frozenset[Any], shown: list[R], order: Callable[[R], Any]
    ) -> None:
        self._base = base
        self._hidden = hidden
        self._shown = shown
        self._order = order

    def __len__(self) -> int:
        return len(self._base) - len(self._hidden) + len(self._shown)

    @overload
    def __getitem__(self, i: int) -> R: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[R]: ...

    def __getitem__(self, i: int | slice) -> R | Sequence[R]:
        return list(self)[i]

    def __iter__(self) -> Iterator[R]:
        left = (row for row in self._base if self._order(row) not in self._hidden)
        return heapq.merge(left, self._shown, key=self._order)


class OverlayTable(Generic[K, R]):
    """Fulfils `ponor_metadata.tables.Table`: the image's table with the touched rows put over it."""

    __slots__ = ("_base", "_index_keys", "_overlay", "_schema", "_touched")

    def __init__(self, base: Table[K, R], overlay: Overlay) -> None:
        self._base = base
        self._schema = base.schema
        self._overlay = overlay
        self._touched: dict[K, _Touched[R]] = {}
        # Per index: under which index keys touched rows stand or stood, and which rows; a dict for its order.
        self._index_keys: dict[str, dict[Any, dict[K, None]]] = {
            index.name: {} for index in self._schema.indexes
        }

    @property
    def schema(self) -> Schema[K, R]:
        return self._schema

    @property
    def touched_rows(self) -> int:
        """How many rows uncommitted batches changed."""
        return len(self._touched)

    def get(self, key: K) -> R | None:
        touched = self._touched.get(key)
        return self._base.get(key) if touched is None else touched.row

    def __contains__(self, key: object) -> bool:
        # Keys of another type are in neither dict.
        return self.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        appeared = sum(
            (touched.row is not None) - (key in self._base) for key, touched in self._touched.items()
        )
        return len(self._base) + appeared

    def __iter__(self) -> Iterator[R]:
        if not self._touched:
            return iter(self._base)
        rows = {self._schema.key(row): row for row in self._base}
        for key, touched in self._touched.items():
            if touched.row is None:
                rows.pop(key, None)
            else:
                rows[key] = touched.row
        # Keys of one table are of one type and ordered; the type variable cannot say so.
        return iter([rows[key] for key in sorted(rows)])  # type: ignore[type-var]

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        base = self._base.find(index, index_key)
        moved = self._index_keys[index.name].get(index_key)
        if not moved:
            return base
        hidden = [under for key in moved if (under := self._base.get(key)) is not None]
        shown = [row for key in moved if (row := self._touched[key].row) is not None]
        return Merged(
            base,
            frozenset(index.order(row) for row in hidden if index_key in index.keys(row)),
            sorted((row for row in shown if index_key in index.keys(row)), key=index.order),
            index.order,
        )

    def put(self, row: R) -> None:
        key = self._schema.key(row)
        if self._index_keys:
            self._note(self.get(key), row)
        self._touched[key] = _Touched(row, self._overlay.index)

    def amend(self, row: R) -> None:
        self.put(row)

    def delete(self, key: K) -> None:
        present = self.get(key)
        if present is None:
            raise KeyError(key)
        self._note(present, None)
        self._touched[key] = _Touched(None, self._overlay.index)

    def _note(self, old: R | None, new: R | None) -> None:
        for row in (old, new):
            if row is None:
                continue
            key = self._schema.key(row)
            for index in self._schema.indexes:
                moved = self._index_keys[index.name]
                for index_key in index.keys(row):
                    moved.setdefault(index_key, {})[key] = None

    def forget(self, index: int | None) -> None:
        """Forget the rows that no batch above `index` touched; None: all rows."""
        if not self._touched:
            return
        kept = {
            key: touched
            for key, touched in self._touched.items()
            if index is not None and touched.batch_index > index
        }
        self._touched = kept
        for moved in self._index_keys.values():
            for index_key in list(moved):
                keys = {key: None for key in moved[index_key] if key in kept}
                if keys:
                    moved[index_key] = keys
                else:
                    del moved[index_key]
