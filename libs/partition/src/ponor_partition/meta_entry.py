"""Entries of a Meta stream: a key with a whole value or a change (docs/formats/partition-meta.md).

Encoding of entries, and folding of entries into current values. Pure; `meta_stream` reads and writes the
stream. Unknown keys are preserved, so that an older broker does not lose the entries of a newer one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NewType

from ponor_runtime.disk import Buffer

from ponor_partition.errors import PartitionCorruptError

MetaKey = NewType("MetaKey", str)
LOG: Final = MetaKey("LOG")
PARTITION: Final = MetaKey("PARTITION")
PRODUCER_SNAPSHOT: Final = MetaKey("PRODUCER_SNAPSHOT")
LEADER_EPOCHS: Final = MetaKey("LEADER_EPOCHS")

ENTRY_HEADER: Final = struct.Struct(">BBHI")
"""Format version, flags, key length, value length; the key (ASCII) and the value follow."""
ENTRY_VERSION: Final = 1
FLAG_CHANGE: Final = 0x01
"""The entry's value is a change of the key's last whole value. Without the flag, the entry's value replaces
the whole value and its changes."""


@dataclass(frozen=True, slots=True)
class MetaEntry:
    """A whole value of a key, or (`is_change`) a change of the last whole value."""

    key: MetaKey
    value: bytes
    is_change: bool = False

    def encode(self) -> bytes:
        """Encode the entry."""
        key = self.key.encode("ascii")
        flags = FLAG_CHANGE if self.is_change else 0
        return ENTRY_HEADER.pack(ENTRY_VERSION, flags, len(key), len(self.value)) + key + self.value


def decode_entry(payload: Buffer, where: str) -> MetaEntry:
    """Decode one entry.

    Raises:
        PartitionCorruptError: names `where` and the violated rule.
    """
    data = bytes(payload)
    if len(data) < ENTRY_HEADER.size:
        raise PartitionCorruptError(
            f"{where}: an entry has {len(data)} bytes; its header alone has {ENTRY_HEADER.size}"
        )
    version, flags, key_length, value_length = ENTRY_HEADER.unpack_from(data)
    if version != ENTRY_VERSION or flags & ~FLAG_CHANGE:
        raise PartitionCorruptError(
            f"{where}: this release does not know entry version {version} with flags {flags:#x}"
        )
    if len(data) != ENTRY_HEADER.size + key_length + value_length:
        raise PartitionCorruptError(
            f"{where}: the key length {key_length} and value length {value_length} do not"
            f" match the {len(data)} bytes of the entry"
        )
    key_end = ENTRY_HEADER.size + key_length
    try:
        key = MetaKey(data[ENTRY_HEADER.size : key_end].decode("ascii"))
    except UnicodeDecodeError as error:
        raise PartitionCorruptError(f"{where}: entry key is not ASCII") from error
    return MetaEntry(key, data[key_end:], bool(flags & FLAG_CHANGE))


@dataclass(slots=True)
class MetaValue:
    """The last whole value of a key and the changes since, oldest first."""

    whole: bytes | None = None
    changes: list[bytes] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes that a replay of this key needs."""
        return len(self.whole or b"") + sum(len(change) for change in self.changes)


MetaValues = dict[MetaKey, MetaValue]


def fold_entry(values: MetaValues, entry: MetaEntry) -> None:
    """Apply one entry: a whole value replaces the value and its changes; a change is appended."""
    value = values.setdefault(entry.key, MetaValue())
    if entry.is_change:
        value.changes.append(entry.value)
    else:
        value.whole = entry.value
        value.changes.clear()


def fold(entries: Iterable[MetaEntry]) -> MetaValues:
    """Fold entries into the current values."""
    values: MetaValues = {}
    for entry in entries:
        fold_entry(values, entry)
    return values
