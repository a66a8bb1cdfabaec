"""LZ4 frames that Kafka accepts and rejects."""

from __future__ import annotations

import lz4.frame  # type: ignore[import-untyped]
import pytest
from ponor_kafka.compression import Codec, compress
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.lz4_frames import check_readable_by_kafka

TAKEN = {
    "plain": b"\x60\x70\x73",
    "with a content size": b"\x68\x40",
    "with checksums of blocks": b"\x70\x40\xad",
    "with a checksum of the content": b"\x64\x40\xa7",
}
REFUSED = {
    "linked blocks": b"\x40\x70\xdf",
    "a dictionary": b"\x61\x70",
    "a reserved bit": b"\x62\x70",
    "version 0": b"\x20\x70",
    "version 2": b"\xa0\x70",
    "nothing behind the magic": b"",
}


@pytest.mark.parametrize("head", TAKEN.values(), ids=TAKEN)
def test_frames_of_kafka_clients_are_accepted(head: bytes) -> None:
    check_readable_by_kafka(b"\x04\x22\x4d\x18" + head)


@pytest.mark.parametrize("head", REFUSED.values(), ids=REFUSED)
def test_frames_that_kafka_refuses_are_refused(head: bytes) -> None:
    with pytest.raises(KafkaWireError):
        check_readable_by_kafka(b"\x04\x22\x4d\x18" + head)


def test_data_that_is_not_a_frame_is_refused() -> None:
    for data in (b"", b"\x04\x22\x4d", b"\x50\x2a\x4d\x18\0\0\0\0", bytes(20)):
        with pytest.raises(KafkaWireError):
            check_readable_by_kafka(data)


def test_our_frames_are_accepted_and_the_library_default_is_refused() -> None:
    check_readable_by_kafka(compress(Codec.LZ4, bytes(200_000)))
    with pytest.raises(KafkaWireError, match="linked"):
        check_readable_by_kafka(lz4.frame.compress(bytes(200_000)))
