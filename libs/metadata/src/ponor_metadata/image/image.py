"""The image: the rows of all committed batches as of one index, equal in all processes that applied the same
batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata.image.apply import apply_batch
from ponor_metadata.image.batches import EMPTY_DIGEST, running_digest
from ponor_metadata.image.memory_table import ImageTable, MemoryTable
from ponor_metadata.image.object_table import ObjectTable
from ponor_metadata.image.plain_records_native import PlainRecords
from ponor_metadata.image.registry import RULES, SCHEMAS
from ponor_metadata.image.stream_object_table import StreamObjectTable
from ponor_metadata.image.stream_set_object_table import StreamSetObjectTable
from ponor_metadata.tables.schema import Schema, Tables

K = TypeVar("K")
R = TypeVar("R")

_RULES_BY_NUMBER: Final = {
    Record.DESCRIPTOR.fields_by_name[kind].number: (kind, rule) for kind, rule in RULES.items()
}


class MetadataImage(Tables):
    """The tables of all committed batches. Implements `View`.

    Attributes:
        index: index of the newest batch, 0 before the first.
        cluster_time_ms: cluster time of that batch.
        digest: running digest after that batch (16 bytes).
        packed_objects, packed_stream_objects, packed_stream_set_objects: the tables whose rows are packed.
            They have additional methods.
    """

    __slots__ = (
        "__weakref__",
        "_plain",
        "cluster_time_ms",
        "digest",
        "index",
        "packed_objects",
        "packed_stream_objects",
        "packed_stream_set_objects",
    )

    if TYPE_CHECKING:

        def __getitem__(self, schema: Schema[K, R]) -> ImageTable[K, R]:
            """Return the table of a schema."""

    def __init__(
        self,
        *,
        index: int = 0,
        cluster_time_ms: int = 0,
        digest: bytes = EMPTY_DIGEST,
        compiled: bool = True,
    ) -> None:
        """Create an image without rows.

        `compiled`: whether compiled code applies plain records. Tests compare this code with the apply rules.
        """
        self.index = index
        self.cluster_time_ms = cluster_time_ms
        self.digest = digest
        self.packed_objects = ObjectTable()
        self.packed_stream_objects = StreamObjectTable()
        self.packed_stream_set_objects = StreamSetObjectTable()
        super().__init__({schema: MemoryTable(schema) for schema in SCHEMAS})
        for packed in (self.packed_objects, self.packed_stream_objects, self.packed_stream_set_objects):
            self[packed.schema] = packed
        self._plain = self._plain_records() if compiled else None

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code applies plain records."""
        return self._plain is not None

    def adopt(self, other: MetadataImage) -> None:
        """Exchange the contents with another image; the table objects stay the same.

        The other image then has the rows of this one; use it only to call `release`.
        """
        self.index, self.cluster_time_ms, self.digest = other.index, other.cluster_time_ms, other.digest
        for schema, table in self.items():
            table.exchange(other[schema])
        self._plain = self._plain_records() if self.is_compiled else None
        other._plain = None

    def release(self) -> Iterator[None]:
        """Free all rows in steps of some microseconds. The image must not be used afterwards.

        Freeing a million rows in one step would block the event loop.
        """
        self._plain = None
        for table in self.values():
            yield from table.release()

    def begin(self, batch: RecordBatch) -> None:
        """See `View.begin`."""
        self.index = batch.index
        self.cluster_time_ms = batch.cluster_time_ms

    def apply_committed(self, encoded: bytes, batch: RecordBatch | None = None) -> RecordBatch:
        """Apply the next committed batch and advance the digest.

        Args:
            encoded: the batch's bytes in the log.
            batch: the decoded batch, if the caller has it.

        Raises:
            UnknownRecordError: a record kind is unknown.
            AssertionError: the batch breaks an invariant.
        """
        if self._plain is None or not self._plain.apply(self, encoded):
            batch = RecordBatch.FromString(encoded) if batch is None else batch
            apply_batch(self, batch)
        self.digest = running_digest(self.digest, encoded)
        return RecordBatch.FromString(encoded) if batch is None else batch

    def replay(self, encoded: bytes) -> None:
        """Apply the next committed batch as `apply_committed` does, without decoding it for the caller."""
        if self._plain is None or not self._plain.apply(self, encoded):
            apply_batch(self, RecordBatch.FromString(encoded))
        self.digest = running_digest(self.digest, encoded)

    def _plain_records(self) -> PlainRecords:
        return PlainRecords(self, _RULES_BY_NUMBER, Record)
