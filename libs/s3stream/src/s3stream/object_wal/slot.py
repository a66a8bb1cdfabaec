"""Encoding of one slot: records in object format v1, then a label; a fence is only a label.

    object format v1 (docs/formats/object.md) | label

The label is at the end, because a repeated put that finds its key taken compares the last bytes
(`stores.retrying`), and one small GET of the last bytes identifies the slot. Format:
docs/formats/object-wal.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId
from ponor_runtime.turns import Steps

from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import block_steps
from s3stream.objects.format import FOOTER_BYTES
from s3stream.objects.index import decode_footer, index_steps
from s3stream.ports import WalName
from s3stream.records import RECORD_HEADER, StreamRecord

LABEL: Final = struct.Struct(">HBBiqQQ16sQ64sI8s")
"""version, kind, namespace length, node id, node epoch, sequence, acknowledged sequence, nonce, object
length, namespace, CRC32C, magic.
"""

LABEL_BYTES: Final = LABEL.size
LABEL_CHECKED_BYTES: Final = LABEL_BYTES - 12
MAGIC: Final = b"PONORWAL"
LABEL_VERSION: Final = 1
SLOT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum length of a slot. It must be a single put, because a multipart upload cannot be create-only
(`stores.s3`). A suffix GET of this length returns a whole slot."""

NONCE_BYTES: Final = 16

assert LABEL_BYTES == 132


class SlotKind(IntEnum):
    """Kind of a slot."""

    DATA = 1
    FENCE = 2


class Label(NamedTuple):
    """Identifies a slot and its writer.

    `nonce` identifies the writing process: equal labels are equal slots. `acknowledged_sequence`:
    all slots below it were acknowledged when this slot was put, so a hole below it is a lost object
    and not an unfinished put. `object_bytes` is the length of the data before the label.
    """

    kind: SlotKind
    name: WalName
    sequence: int
    acknowledged_sequence: int
    nonce: bytes
    object_bytes: int

    def encode(self) -> bytes:
        """Encode the 132 bytes."""
        namespace = self.name.namespace.encode("ascii")
        assert len(namespace) <= 64
        assert len(self.nonce) == NONCE_BYTES
        fields = (LABEL_VERSION, self.kind, len(namespace), self.name.node_id, self.name.epoch, self.sequence)
        rest = (self.acknowledged_sequence, self.nonce, self.object_bytes, namespace)
        checked = LABEL.pack(*fields, *rest, 0, MAGIC)[:LABEL_CHECKED_BYTES]
        return LABEL.pack(*fields, *rest, crc32c(checked), MAGIC)


def decode_label(key: str, name: WalName, sequence: int, tail: Buffer) -> Label:
    """Decode and verify the label at the end of `tail`, the last bytes of the slot under `key`.

    Raises:
        ObjectCorruptError: the label breaks the format, or its slot does not match the key.
    """
    if len(tail) < LABEL_BYTES:
        raise ObjectCorruptError(f"{key}: label: {len(tail)} bytes instead of {LABEL_BYTES}")
    encoded = memoryview(tail)[-LABEL_BYTES:]
    version, kind, length, node_id, epoch, found, acknowledged, nonce, object_bytes, text, crc, magic = (
        LABEL.unpack(encoded)
    )
    if magic != MAGIC:
        raise ObjectCorruptError(f"{key}: label magic: {magic!r} instead of {MAGIC!r}; this is not a slot")
    if crc32c(bytes(encoded[:LABEL_CHECKED_BYTES])) != crc:
        raise ObjectCorruptError(f"{key}: label CRC32C: the bytes do not match the CRC")
    if version != LABEL_VERSION or kind not in tuple(SlotKind) or length > len(text):
        raise ObjectCorruptError(
            f"{key}: label version: {version} with kind {kind}; this reader supports {LABEL_VERSION}"
        )
    namespace = text[:length].decode("ascii")
    named = WalName(namespace, NodeId(node_id), NodeEpoch(epoch))
    if (named, found) != (name, sequence):
        raise ObjectCorruptError(f"{key}: label: this is slot {found} of {named}")
    return Label(SlotKind(kind), named, found, acknowledged, nonce, object_bytes)


def slot_records(key: str, label: Label, data: bytes) -> Steps[list[StreamRecord]]:
    """Verify a whole data slot and return its records in (stream, offset) order; payloads are views.

    Raises:
        ObjectCorruptError: names the slot, the position and the rule.
    """
    if len(data) != label.object_bytes + LABEL_BYTES:
        raise ObjectCorruptError(
            f"{key}: object length: {len(data) - LABEL_BYTES} bytes; the label says {label.object_bytes}"
        )
    whole = memoryview(data)[: label.object_bytes]
    footer = decode_footer(key, ObjectId(label.sequence), whole[-FOOTER_BYTES:], label.object_bytes)
    index = yield from index_steps(
        key, footer, bytes(whole[footer.index_position : footer.index_position + footer.index_bytes])
    )
    records: list[StreamRecord] = []
    for entry in index:
        block_bytes = bytes(whole[entry.position : entry.position + entry.size_bytes])
        block = yield from block_steps(key, entry, block_bytes)
        records.extend(block.records_from(entry.start_offset))
        yield
    return records


def records_in(buffers: list[Buffer]) -> Iterator[StreamRecord]:
    """Return the records of an entry, whose buffers are alternating headers and payloads."""
    assert len(buffers) % 2 == 0
    for header, payload in zip(buffers[::2], buffers[1::2], strict=True):
        stream_id, epoch, base_offset, max_timestamp, count, payload_bytes = RECORD_HEADER.unpack(header)
        assert payload_bytes == len(payload)
        yield StreamRecord(stream_id, epoch, base_offset, count, max_timestamp, payload)
