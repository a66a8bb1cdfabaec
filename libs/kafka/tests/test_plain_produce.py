"""Plain Produce requests: the compiled and the Python parser agree on all input, and both agree with the
general path."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from crc32c import crc32c
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import encode
from ponor_kafka.compression import Codec
from ponor_kafka.headers import decode_request_header, encode_request_header
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.plain_produce import read_plain_produce, stamped_copy, walk_plain_batch
from ponor_kafka.produce_walk import TOPIC_ID_MIN, walk_produce
from ponor_kafka.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_BYTES, BatchView
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN, NO_TIMESTAMP
from ponor_kafka.record_walk import walk_records

from libs.kafka.tests import plain_produce_oracle

VERSIONS: Final = range(3, 14)
T0: Final = 1_700_000_000_000
TOPIC_ID: Final = bytes(range(16))


def some_batch(rng: random.Random) -> bytearray:
    """Build an uncompressed batch as a producer does."""
    records = [
        NewRecord(
            T0 + rng.randrange(-5, 1000),
            rng.choice((None, b"", rng.randbytes(5))),
            rng.choice((None, rng.randbytes(rng.choice((0, 3, 70, 300))))),
            [("header", rng.choice((None, b"value")))] * rng.choice((0, 0, 2)),
        )
        for _ in range(rng.choice((1, 1, 2, 20)))
    ]
    producer = rng.choice(((-1, -1, -1), (7, 0, 0), (1 << 40, 3, 2**31 - 1)))
    return build_batch(
        records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )


def framed(
    version: int,
    batch: bytes | bytearray | None,
    *,
    client_id: str | None = "client",
    topic: str = "orders",
    acks: int = -1,
    transactional_id: str | None = None,
    number: int = 77,
) -> bytearray:
    """Build a request frame with this batch for partition 3."""
    data = PartitionProduceData(3, batch)
    one = (
        TopicProduceData(topic_id=TOPIC_ID, partition_data=[data])
        if version >= TOPIC_ID_MIN
        else TopicProduceData(topic, partition_data=[data])
    )
    request = ProduceRequest(transactional_id, acks, 30_000, [one])
    return bytearray(
        encode_request_header(ApiKey.PRODUCE, version, number, client_id) + encode(request, version)
    )


def with_checksum(frame: bytearray, position: int) -> None:
    """Recompute the checksum of the batch, which ends with the frame or before three tag buffers."""
    behind = 3 if frame[3] >= 9 else 0
    end = len(frame) - behind
    checksum = crc32c(bytes(frame[position + ATTRIBUTES_POSITION : end]))
    frame[position + CRC_POSITION : position + CRC_POSITION + 4] = checksum.to_bytes(4, "big")


Plain = tuple[plain_produce_oracle.PlainProduce, plain_produce_oracle.PlainRecords]


def both(frame: bytearray) -> Plain | None:
    """Run both parsers, check that they agree and leave the frame unchanged, and return the result."""
    before = bytes(frame)
    native = read_plain_produce(frame)
    assert native == plain_produce_oracle.read_plain_produce(frame)
    if native is None:
        return None
    position, size = native[5:7]
    records = walk_plain_batch(frame, position, size)
    assert records == plain_produce_oracle.walk_plain_batch(frame, position, size)
    assert frame == before
    return None if records is None else (native, records)


def the_long_way_agrees(frame: bytearray, plain: Plain) -> None:
    """Compute the expected result with the parsers of the general path."""
    version, number, timeout_ms, topic, index, position, size, count, *producer = plain[0]
    newest, oldest, no_key = plain[1]
    header = decode_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id) == (ApiKey.PRODUCE, version, number)
    walk, end = walk_produce(version, memoryview(frame), header.body_position)
    assert end == len(frame)
    assert walk.acks in {-1, 1}
    assert (walk.transactional_id, walk.timeout_ms) == (None, timeout_ms)
    ((name, topic_id, partition, records),) = walk.partitions
    assert (topic_id if version >= TOPIC_ID_MIN else name, partition) == (topic, index)
    assert records is not None
    assert bytes(records) == frame[position : position + size]
    batch = BatchView(records)
    batch.check_crc()
    assert (batch.base_offset, batch.attributes, batch.record_count) == (0, 0, count)
    assert batch.last_offset_delta == count - 1
    assert producer == [batch.producer_id, batch.producer_epoch, batch.base_sequence]
    data = records[HEADER_BYTES:]
    found = walk_records(data, count, batch.first_timestamp, False, True, oldest, INT64_MAX, count)
    assert (found.max_timestamp, found.bad_timestamps) == (newest, 0)
    assert batch.max_timestamp == newest
    assert bool(found.missing_keys) == no_key
    assert INT64_MIN <= found.min_timestamp == oldest <= newest
    later = walk_records(data, count, batch.first_timestamp, False, False, oldest + 1, INT64_MAX, count)
    assert later.bad_timestamps or oldest == NO_TIMESTAMP


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_producers_are_plain(version: int) -> None:
    rng = random.Random(f"plain {version}")
    for _ in range(100):
        frame = framed(
            version,
            some_batch(rng),
            client_id=rng.choice((None, "", "producer-1")),
            topic=rng.choice(("t", "x" * 120)),
            acks=rng.choice((1, -1)),
            number=rng.randrange(-(1 << 31), 1 << 31),
        )
        plain = both(frame)
        assert plain is not None
        the_long_way_agrees(frame, plain)


@pytest.mark.parametrize("version", VERSIONS)
def test_mutated_requests_are_parsed_alike_by_both_parsers_and_the_general_path(
    version: int,
) -> None:
    rng = random.Random(f"mutated {version}")
    accepted = 0
    for _ in range(1500):
        frame = framed(version, some_batch(rng))
        plain = both(frame)
        assert plain is not None
        position = plain[0][5]
        for _ in range(rng.randrange(1, 3)):
            at = rng.choice(
                (rng.randrange(len(frame)), rng.randrange(position + HEADER_BYTES), rng.randrange(45))
            )
            frame[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, frame[at] ^ (1 << rng.randrange(8))))
        if rng.randrange(3):
            with_checksum(frame, position)
        if not rng.randrange(8):
            del frame[rng.randrange(len(frame)) :]
        changed = both(frame)
        if changed is not None:
            accepted += 1
            the_long_way_agrees(frame, changed)
    assert accepted > 50


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_frame_is_not_plain(version: int) -> None:
    frame = framed(version, some_batch(random.Random(version)))
    for size in range(len(frame)):
        assert both(frame[:size]) is None
    assert both(frame + b"\0") is None


def _changed(batch: bytearray, change: Callable[[bytearray], None]) -> bytearray:
    change(batch)
    batch[CRC_POSITION : CRC_POSITION + 4] = crc32c(bytes(batch[ATTRIBUTES_POSITION:])).to_bytes(4, "big")
    return batch


def _set(position: int, value: bytes) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[position : position + len(value)] = value

    return change


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_take_the_general_path(version: int) -> None:
    rng = random.Random(version)
    good = some_batch(rng)
    unusual = [
        framed(version, None),
        framed(version, b""),
        framed(version, good, client_id="käse"),
        framed(version, good, acks=0),
        framed(version, good, acks=2),
        framed(version, good, transactional_id="t"),
        framed(version, good + good),
        framed(version, build_batch([NewRecord(T0, b"k", bytes(500))], codec=Codec.LZ4)),
        framed(version, good[:-1] + bytes([good[-1] ^ 1])),
    ]
    if version < TOPIC_ID_MIN:
        unusual.append(framed(version, good, topic="käse"))
    changes = [
        _set(0, (5).to_bytes(8, "big")),  # a base offset
        _set(16, b"\x01"),  # another format
        _set(21, b"\x00\x08"),  # LogAppendTime
        _set(21, b"\x00\x10"),  # transactional
        _set(21, b"\x00\x20"),  # control
        _set(35, (T0 + 5000).to_bytes(8, "big")),  # a maximum timestamp that no record has
        _set(43, (7).to_bytes(8, "big") + b"\xff\xff" + b"\0\0\0\0"),  # a producer id without an epoch
        _set(57, (21).to_bytes(4, "big")),  # more records than there are
    ]
    unusual += [framed(version, _changed(some_batch(rng), change)) for change in changes]
    for frame in unusual:
        assert both(frame) is None
    other_api = framed(version, good)
    other_api[1] = ApiKey.FETCH
    assert both(other_api) is None


def test_records_without_a_timestamp_report_none() -> None:
    frame = framed(9, build_batch([NewRecord(-1, b"k", b"v")] * 2))
    plain = both(frame)
    assert plain is not None
    assert plain[1] == (-1, -1, False)


@pytest.mark.parametrize("stamped", [stamped_copy, plain_produce_oracle.stamped_copy])
def test_stamped_copy_is_the_batch_with_offset_and_epoch(stamped: Callable[..., bytes]) -> None:
    batch = some_batch(random.Random(1))
    frame = framed(9, batch)
    plain = both(frame)
    assert plain is not None
    before = bytes(frame)
    BatchView(memoryview(batch)).stamp((1 << 40) + 5, 9)
    copied = stamped(frame, *plain[0][5:7], (1 << 40) + 5, 9)
    assert type(copied) is bytes
    assert copied == batch
    assert frame == before
    for position, size in ((-1, 80), (0, HEADER_BYTES - 1), (1, len(frame)), (len(frame), HEADER_BYTES)):
        with pytest.raises(ValueError, match="no batch"):
            stamped(frame, position, size, 0, 0)
        for walk in (walk_plain_batch, plain_produce_oracle.walk_plain_batch):
            with pytest.raises(ValueError, match="no batch"):
                walk(frame, position, size)
