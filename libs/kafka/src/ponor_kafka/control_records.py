"""Control batches that end transactions: construction and reading (KIP-98).

A control record's key is `>hh`: version, type. The value of a transaction's marker is `>hi`: version,
coordinator epoch. Newer versions may append fields.
"""

from enum import IntEnum
from struct import Struct as PackedRun
from typing import Final, NamedTuple

from crc32c import crc32c

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_BYTES, BatchView
from ponor_kafka.record_builder import CRC_END, build_batch

CONTROL_RECORD_BYTES_MAX: Final = 1 << 16
_KEY: Final = PackedRun(">hh")
_VALUE: Final = PackedRun(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    """The type in a control record's key. Other values exist and do not concern transactions."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """Content of the control batch that ends a transaction, without the producer's id and epoch."""

    kind: ControlType
    coordinator_epoch: int


def control_type(batch: BatchView) -> int | None:
    """Return the type of a control batch; None if its record was already removed, -1 if the record's key is
    invalid.

    Raises KafkaWireError if it contains no control record.
    """
    if batch.record_count == 0:
        return None
    key = next(iter(batch.records(CONTROL_RECORD_BYTES_MAX))).key or b""
    return int(_KEY.unpack_from(key)[1]) if len(key) >= _KEY.size else -1


def read_end_marker(batch: BatchView) -> EndMarker | None:
    """Return the transaction's end that a control batch marks; None for any other control batch.

    Raises KafkaWireError if it contains no well-formed control record.
    """
    kind = control_type(batch)
    if kind not in {ControlType.ABORT, ControlType.COMMIT}:
        return None
    value = next(iter(batch.records(CONTROL_RECORD_BYTES_MAX))).value or b""
    if len(value) < _VALUE.size:
        raise KafkaWireError(f"the marker at offset {batch.base_offset} has a value of {len(value)} bytes")
    return EndMarker(ControlType(kind), _VALUE.unpack_from(value)[1])


def build_end_marker(
    producer_id: int, producer_epoch: int, marker: EndMarker, timestamp_ms: int
) -> bytearray:
    """Build the control batch that ends a producer's transaction; it takes one offset."""
    # All fields have fixed sizes, so a copy costs less than a build.
    batch = bytearray(_END_MARKER)
    _TIMES_AND_PRODUCER.pack_into(
        batch, _TIMES_POSITION, timestamp_ms, timestamp_ms, producer_id, producer_epoch
    )
    _KEY.pack_into(batch, _KEY_POSITION, _VERSION, marker.kind)
    _VALUE.pack_into(batch, _VALUE_POSITION, _VERSION, marker.coordinator_epoch)
    batch[CRC_POSITION:CRC_END] = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]).to_bytes(4, "big")
    return batch


_END_MARKER: Final = bytes(
    build_batch(
        [(0, bytes(_KEY.size), bytes(_VALUE.size))],
        producer_id=0,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
)
_TIMES_AND_PRODUCER: Final = PackedRun(">qqqh")
_TIMES_POSITION: Final = 27
_KEY_POSITION: Final = HEADER_BYTES + 5
"""Behind the record's length, attributes, two deltas and the length of the key: one byte each."""
_VALUE_POSITION: Final = _KEY_POSITION + _KEY.size + 1
