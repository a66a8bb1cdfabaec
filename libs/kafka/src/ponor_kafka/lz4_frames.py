"""Which LZ4 frames Kafka takes (the LZ4 frame format, version 1.6.1; `Lz4BlockInputStream` of Apache Kafka 4.3).

What lives here: a look at a frame's descriptor, for who validates what producers send. The LZ4 library reads more than Kafka does: frames whose blocks refer to the blocks before them,
frames that name a dictionary, frames to be skipped. A Java consumer stops at such a batch for ever.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer

MAGIC: Final = b"\x04\x22\x4d\x18"
_INDEPENDENT_BLOCKS: Final = 0x20
_VERSION_1: Final = 0x40
_DECIDES: Final = 0xE3
"""Of the flags, those that Kafka insists on: the version, independent blocks, the reserved bit and the dictionary's."""


def check_readable_by_kafka(data: Buffer) -> None:
    """Raises KafkaWireError for a frame that Kafka's own reader refuses. What it holds is the decompressor's to check."""
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) <= len(MAGIC):
        raise KafkaWireError("the lz4 data does not begin with a frame")
    flags = data[len(MAGIC)]
    if flags & _DECIDES == _VERSION_1:
        raise KafkaWireError("the lz4 frame has linked blocks, which Java clients cannot read")
    if flags & _DECIDES != _VERSION_1 | _INDEPENDENT_BLOCKS:
        raise KafkaWireError(f"the lz4 frame has flags {flags:#04x}, which Java clients cannot read")
