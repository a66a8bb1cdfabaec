"""What a batch holds, without decoding its records: for those who count, and for those who ask whether to look at all.

What lives here: a walk over the batch's bytes by compiled code, and its twin by protobuf. A follower decodes no record that it has no use for.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

try:
    from ponor_metadata.plain_records_native import contents_of as _compiled_contents_of
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
    _compiled_contents_of = None  # type: ignore[assignment]

Contents = tuple[int, int, dict[int, int]]
"""Index, term, and how many records there are of each kind, by the kind's number in Record, ascending."""

KINDS: Final = {field.number: field.name for field in Record.DESCRIPTOR.oneofs_by_name["kind"].fields}
"""Names of the kinds that this build knows."""
UNKNOWN_KIND: Final = 0
_NUMBERS: Final = {name: number for number, name in KINDS.items()}


def contents_of(encoded: bytes) -> Contents:
    """Walk over a batch as it stands in the log.

    Raises:
        DecodeError: it is none.
    """
    contents = None if _compiled_contents_of is None else _compiled_contents_of(encoded)
    return decoded_contents_of(encoded) if contents is None else contents


def decoded_contents_of(encoded: bytes) -> Contents:
    """The same by protobuf, which knows every way in which a batch may be encoded."""
    batch = RecordBatch.FromString(encoded)
    kinds = Counter(_NUMBERS.get(record.WhichOneof("kind") or "", UNKNOWN_KIND) for record in batch.records)
    return batch.index, batch.term, dict(sorted(kinds.items()))
