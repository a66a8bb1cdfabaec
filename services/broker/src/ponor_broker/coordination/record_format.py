"""Parts of the format that all internal topics share: keys and values start with a version."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer

_STRING_BYTES_MAX = 32_767


class RecordFormatError(ValueError):
    """A record violates the format; the message names the key and the reason."""


class LogEntry(Protocol):
    """A key with its value, or with None as a tombstone."""

    @property
    def key(self) -> Hashable: ...


E = TypeVar("E", bound=LogEntry)


@dataclass(frozen=True, slots=True)
class EntryCodec(Generic[E]):
    """Encoding of the entries of one topic.

    Attributes:
        encode: returns key and value; the value of a tombstone is None.
        decode: returns the entry of a key and a value; None for a record to skip. Raises RecordFormatError.
    """

    encode: Callable[[E], tuple[bytes, bytes | None]]
    decode: Callable[[Buffer | None, Buffer | None], E | None]


def fits_record(text: str) -> bool:
    """Return whether the text fits a string of a record (Kafka's bound: 32767 bytes)."""
    return len(text) * 4 <= _STRING_BYTES_MAX or len(text.encode()) <= _STRING_BYTES_MAX


def version_of(value: Buffer) -> int:
    """Return the version at the start of a value.

    Raises:
        KafkaWireError: the value is too short.
    """
    if len(value) < 2:
        raise KafkaWireError("the value has no version")
    return int.from_bytes(value[:2], "big", signed=True)
