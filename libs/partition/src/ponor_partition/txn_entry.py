"""Entries of the Txn stream: the aborted-transaction index (docs/formats/partition-meta.md)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ponor_runtime.disk import Buffer

from ponor_partition.errors import PartitionCorruptError

_ENTRY: Final = struct.Struct(">qqqq")
TXN_ENTRY_BYTES: Final = _ENTRY.size


class TxnEntry(NamedTuple):
    """One aborted transaction, in Kafka offsets.

    `first_offset` is the base offset of its first batch, `last_offset` the offset of its abort marker. No
    transaction that was aborted later begins below `last_stable_offset`.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Encode the entry."""
        return _ENTRY.pack(*self)


def decode_txn_entry(payload: Buffer, where: str) -> TxnEntry:
    """Decode one entry.

    Raises:
        PartitionCorruptError: names `where`.
    """
    if len(payload) != _ENTRY.size:
        raise PartitionCorruptError(f"{where}: an entry has {_ENTRY.size} bytes, found {len(payload)}")
    return TxnEntry(*_ENTRY.unpack(payload))
