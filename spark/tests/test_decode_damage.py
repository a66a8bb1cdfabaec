"""Tests of damaged bytes: both kernels raise the same error, which names the position."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable
from operator import methodcaller

import pytest
from ponor_kafka.compression import Codec, compress
from ponor_kafka.record_batch import HEADER_BYTES
from ponor_spark.clip import Clip
from ponor_spark.decode.batches import DECOMPRESSED_BYTES_MAX, BatchDecoder
from ponor_spark.decode.errors import CorruptBatchError
from ponor_spark.errors import PonorSparkError

from spark.tests.decoding import decode
from spark.tests.stored_batches import MS, Kept, Kind, data_block, stored_batch, with_checksum

RECORDS = [Kept(n, MS + n, b"key", b"value %d" % n, (("h", b"v"), ("n", None))) for n in range(4)]
PLAIN = stored_batch(RECORDS, span=4)
FIRST = HEADER_BYTES
"""Position of the first record: length, attributes, timestamp delta, offset delta, key length, "key", value
length, "value 0", header count, …
"""


def changed(at: int, byte: int, batch: bytes = PLAIN) -> bytes:
    """Change one byte, with a matching checksum."""
    damaged = bytearray(batch)
    damaged[at] = byte
    return with_checksum(damaged)


def counting(count: int, batch: bytes = PLAIN) -> bytes:
    return with_checksum(bytearray(batch[:57]) + count.to_bytes(4, "big", signed=True) + batch[61:])


def holding(body: bytes, codec: Codec) -> bytes:
    """Build a batch of a codec with arbitrary content."""
    batch = bytearray(PLAIN[:HEADER_BYTES]) + body
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] = codec
    return with_checksum(batch)


@pytest.mark.parametrize(
    ("batch", "rule"),
    [
        (PLAIN[:-1] + b"\7", "CRC"),
        (PLAIN[:40], "too few"),
        (b"", "too few"),
        (PLAIN + b"\0", "claims"),
        (PLAIN[:16] + b"\1" + PLAIN[17:], "record format v1"),
        (changed(22, 7), "codec 7"),
        (counting(-1), "claims -1 records"),
        (counting(1 << 30), "claims 1073741824 records"),
        (counting(3), "bytes are left after the last of 3 records"),
        (counting(5), "record 4"),
        (changed(FIRST, 1), "record 0 claims -1 bytes"),
        (changed(FIRST, 0), "record 0 claims 0 bytes"),
        (changed(FIRST, 0xFF), "record 0"),
        (changed(FIRST + 3, 1), "offset delta -1"),
        (changed(FIRST + 3, 200), "offset delta"),
        (changed(FIRST + 4, 100), "key of record 0 claims 50 bytes"),
        (changed(FIRST + 8, 100), "value of record 0 claims 50 bytes"),
        (changed(FIRST + 16, 1), "claims -1 headers"),
        (changed(FIRST + 16, 60), "claims 30 headers"),
        (changed(FIRST + 16, 2), "left after the headers of record 0"),
        (changed(FIRST + 17, 1), "header key of record 0 claims -1 bytes"),
        (changed(FIRST + 19, 100), "header value of record 0 claims 50 bytes"),
        (changed(26, 2), "offset delta 3"),  # the last delta in the header is smaller
        (changed(26, 4), "does not fit into the offsets"),
        (changed(23, 0x80), "does not fit into the offsets"),
        (holding(b"nonsense", Codec.GZIP), "gzip"),
        (holding(b"nonsense", Codec.SNAPPY), "snappy"),
        (holding(b"nonsense", Codec.LZ4), "lz4"),
        (holding(b"nonsense", Codec.ZSTD), "zstd"),
    ],
)
def test_each_rule_that_a_batch_breaks_is_named_with_its_place(batch: bytes, rule: str) -> None:
    good = stored_batch(RECORDS, span=4)
    block = data_block([good, batch], [4, 4], 1_000)
    with pytest.raises(CorruptBatchError, match=rule) as error:
        decode(lambda decoder: decoder.feed_block(block, -500))
    assert str(error.value).startswith("topic t, partition 3, offset 504: ")


def test_decompression_bomb_is_refused_before_it_uses_memory() -> None:
    bomb = holding(compress(Codec.ZSTD, bytes(DECOMPRESSED_BYTES_MAX + 1)), Codec.ZSTD)
    assert len(bomb) < 100_000
    with pytest.raises(CorruptBatchError, match=f"offset 0: .* grows beyond {DECOMPRESSED_BYTES_MAX} bytes"):
        decode(lambda decoder: decoder.feed(bomb, 0))


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda block: block[:-1], "record header: .* bytes, but"),
        (lambda block: block + bytes(39), "record header: 39 bytes remain"),
        (lambda block: block[:32] + bytes(4) + block[36:], "record header: count 0"),
        (lambda block: block[:32] + b"\xff" + block[33:], "record header: count"),
        (lambda block: block[:36] + b"\xff" + block[37:], "record header: count 4 and"),
        (lambda block: block[:16] + b"\x7f" + b"\xff" * 7 + block[24:], "record header: count"),
        (lambda block: block[:16] + b"\xff" + block[17:], "record header: count"),
        (lambda block: block + block, "record header: stream offset 10 where 14 belongs"),
    ],
)
def test_each_rule_that_a_stream_record_breaks_is_named(damage: Callable[[bytes], bytes], rule: str) -> None:
    block = damage(data_block([PLAIN], [4], 10))
    with pytest.raises(CorruptBatchError, match=f"topic t, partition 3, offset .*: {rule}"):
        decode(lambda decoder: decoder.feed_block(block, 0))


def test_a_batch_with_more_offsets_than_its_stream_record_is_refused() -> None:
    with pytest.raises(
        CorruptBatchError, match=r"last offset delta 3, which does not fit into the offsets \[10, 13\)"
    ):
        decode(lambda decoder: decoder.feed_block(data_block([PLAIN], [3], 10), 0))


def test_the_error_survives_the_way_from_an_executor() -> None:
    with pytest.raises(CorruptBatchError) as error:
        decode(lambda decoder: decoder.feed(PLAIN[:-1] + b"\7", 77))
    copy = pickle.loads(pickle.dumps(error.value))
    assert isinstance(copy, PonorSparkError)
    assert str(copy) == str(error.value)
    assert "offset 77" in str(copy)


@pytest.mark.parametrize("codec", Codec)
def test_random_damage_is_refused_or_harmless_and_both_kernels_agree(codec: Codec) -> None:
    """Recompute the checksum, so that the damage reaches the record decoder."""
    rng = random.Random(codec)
    good = stored_batch(RECORDS, Kind(codec=codec), span=4)
    refused = 0
    for _ in range(250):
        batch = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 5))):
            batch[rng.randrange(21, len(batch))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.2:
            batch = batch[: rng.randrange(HEADER_BYTES, len(batch))] + rng.randbytes(rng.randrange(3))
            batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        refused += is_refused(methodcaller("feed", with_checksum(batch), 100))
    assert refused > 50


def test_random_damage_within_a_block_is_refused_or_harmless_and_both_kernels_agree() -> None:
    """Damage the middle batch, with a matching checksum, or the stream records."""
    rng = random.Random(9)
    good = stored_batch(RECORDS, span=4)
    refused = 0
    for _ in range(500):
        damaged, places = bytearray(good), rng.choice((1, 1, 2, 5))
        for _ in range(places):
            damaged[rng.randrange(8, len(damaged))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        block = bytearray(data_block([good, with_checksum(damaged), good], [4, 4, 4], 96))
        if rng.random() < 0.3:
            block[rng.choice((0, len(good) + 40)) + rng.randrange(16, 40)] = rng.randrange(256)
        refused += is_refused(methodcaller("feed_block", block, 0))
    assert refused > 100


def is_refused(feed: Callable[[BatchDecoder], None]) -> bool:
    try:
        decode(feed, clip=Clip("t", 3, 50, 150), rows_max=5)
    except CorruptBatchError as error:
        assert re.match(r"topic t, partition 3, offset -?\d+: \S", str(error))  # noqa: PT017 - whether it is raised is the result
        return True
    return False
