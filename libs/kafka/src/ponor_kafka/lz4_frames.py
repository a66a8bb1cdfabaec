"""Check that Kafka accepts an LZ4 frame (LZ4 frame format 1.6.1; `Lz4BlockInputStream` of Kafka 4.3).

The LZ4 library accepts more than Kafka: linked blocks, dictionaries, skippable frames. A Java consumer gets
stuck at such a batch, so the broker validates the frame descriptor of produced batches.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer

MAGIC: Final = b"\x04\x22\x4d\x18"
_INDEPENDENT_BLOCKS: Final = 0x20
_VERSION_1: Final = 0x40
_DECIDES: Final = 0xE3
"""Flags that Kafka checks: version, independent blocks, the reserved bit and the dictionary bit."""


def check_readable_by_kafka(data: Buffer) -> None:
    """Raise KafkaWireError for a frame that Kafka's reader rejects. The decompressor checks the contents."""
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) <= len(MAGIC):
        raise KafkaWireError("the lz4 data does not begin with a frame")
    flags = data[len(MAGIC)]
    if flags & _DECIDES == _VERSION_1:
        raise KafkaWireError("the lz4 frame has linked blocks, which Java clients cannot read")
    if flags & _DECIDES != _VERSION_1 | _INDEPENDENT_BLOCKS:
        raise KafkaWireError(f"the lz4 frame has flags {flags:#04x}, which Java clients cannot read")
