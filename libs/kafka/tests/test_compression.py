"""Every codec against its reference library, and decompression bombs."""

import gzip
import random
import tracemalloc
import zlib

import lz4.frame  # type: ignore[import-untyped]
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard
from ponor_kafka.compression import XERIAL_MAGIC, Codec, compress, decompress
from ponor_kafka.errors import KafkaWireError

BOUND = 1 << 22
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
CODECS = pytest.mark.parametrize("codec", COMPRESSING, ids=lambda codec: codec.name)
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "repetitive": b"abc" * 300_000,
    "random": random.Random(1).randbytes(200_000),
    "zeros": bytes(1_000_000),
}


def reference_compress(codec: Codec, data: bytes) -> bytes:
    if codec is Codec.GZIP:
        return gzip.compress(data)
    if codec is Codec.SNAPPY:
        return bytes(snappy.compress(data))
    if codec is Codec.LZ4:
        return bytes(lz4.frame.compress(data))
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def reference_decompress(codec: Codec, data: bytes) -> bytes:
    if codec is Codec.GZIP:
        return gzip.decompress(data)
    if codec is Codec.LZ4:
        return bytes(lz4.frame.decompress(data))
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@CODECS
@pytest.mark.parametrize("sample", SAMPLES)
def test_compressed_data_round_trips(codec: Codec, sample: str) -> None:
    data = SAMPLES[sample]
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(compress(codec, memoryview(data)))), BOUND)) == data


@CODECS
@pytest.mark.parametrize("sample", SAMPLES)
def test_output_of_the_reference_library_is_readable(codec: Codec, sample: str) -> None:
    data = SAMPLES[sample]
    assert bytes(decompress(codec, reference_compress(codec, data), BOUND)) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
@pytest.mark.parametrize("sample", SAMPLES)
def test_reference_library_reads_our_output(codec: Codec, sample: str) -> None:
    assert reference_decompress(codec, compress(codec, SAMPLES[sample])) == SAMPLES[sample]


def test_snappy_uses_the_framing_of_the_java_client() -> None:
    data = SAMPLES["random"]
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1")
    blocks = []
    pos = 16
    while pos < len(framed):
        size = int.from_bytes(framed[pos : pos + 4], "big")
        blocks.append(snappy.decompress(framed[pos + 4 : pos + 4 + size]))
        pos += 4 + size
    assert b"".join(blocks) == data
    assert max(map(len, blocks)) == 32 * 1024


def test_lz4_has_independent_blocks_for_the_java_client() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, SAMPLES["repetitive"]))
    assert not info["block_linked"]


def test_consecutive_gzip_members_are_decompressed() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"


def test_codec_none_returns_data_within_the_limit() -> None:
    assert decompress(Codec.NONE, b"abc", 3) == b"abc"
    with pytest.raises(KafkaWireError):
        decompress(Codec.NONE, b"abcd", 3)


@CODECS
def test_truncated_data_is_a_wire_error(codec: Codec) -> None:
    whole = compress(codec, random.Random(2).randbytes(300))
    for cut in range(1, len(whole)):
        if codec is Codec.SNAPPY and cut == 16:
            continue  # the header alone is an empty stream
        with pytest.raises(KafkaWireError):
            decompress(codec, whole[:cut], BOUND)


@CODECS
def test_garbage_is_a_wire_error_or_some_bytes(codec: Codec) -> None:
    rng = random.Random(3)
    whole = compress(codec, b"some text, some text, some text" * 20)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            assert len(decompress(codec, damaged, BOUND)) <= BOUND
        except KafkaWireError:
            continue


@CODECS
def test_one_byte_beyond_the_limit_is_refused(codec: Codec) -> None:
    data = random.Random(5).randbytes(100_000) + bytes(100_000)
    compressed = compress(codec, data)
    assert bytes(decompress(codec, compressed, 200_000)) == data
    with pytest.raises(KafkaWireError, match="beyond 199999"):
        decompress(codec, compressed, 199_999)


def zstd_bomb(blocks: int) -> bytes:
    """Build a frame without a content size in which every four bytes expand to 128 KiB of zeros."""
    header = bytes.fromhex("28b52ffd") + bytes((0x00, 0x38))
    block = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (131_072 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return header + block * (blocks - 1) + last


def gzip_bomb(megabytes: int) -> bytes:
    compressor = zlib.compressobj(9, wbits=31)
    return b"".join(compressor.compress(bytes(1 << 20)) for _ in range(megabytes)) + compressor.flush()


class TestBombs:
    """Memory stays bounded: tracemalloc counts every output buffer."""

    @pytest.mark.parametrize(
        ("codec", "bomb"),
        [
            (Codec.ZSTD, zstd_bomb(262_144)),  # 1 MiB that expands to 32 GiB
            (Codec.GZIP, gzip_bomb(64)),
            (Codec.LZ4, lz4.frame.compress(bytes(1 << 27))),
            (
                Codec.SNAPPY,
                b"\xff\xff\xff\xff\x0f" + bytes(100),
            ),  # one raw block with a claimed size of 4 GiB
            (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(1 << 26))),
        ],
        ids=["zstd", "gzip", "lz4", "snappy-claim", "snappy-blocks"],
    )
    def test_bomb_is_refused_with_bounded_memory(self, codec: Codec, bomb: bytes) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(KafkaWireError):
                decompress(codec, bomb, BOUND)
            assert tracemalloc.get_traced_memory()[1] < 3 * BOUND + 2 * len(bomb)
        finally:
            tracemalloc.stop()

    def test_bomb_within_the_limit_is_decompressed(self) -> None:
        assert decompress(Codec.ZSTD, zstd_bomb(32), BOUND) == bytes(BOUND)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_error_does_not_keep_output_buffers_alive(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    with pytest.raises(KafkaWireError) as caught:
        decompress(codec, bomb, 16 << 20)
    frames = caught.value.__traceback__
    while frames is not None:
        held = [value for value in frames.tb_frame.f_locals.values() if isinstance(value, bytes | bytearray)]
        assert sum(map(len, held)) < len(bomb) + 1024
        frames = frames.tb_next
    assert caught.value.__context__ is None
