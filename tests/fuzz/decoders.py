"""All decoders of bytes from outside the process: from clients, from disk, from the object store.

Each entry has valid encodings to mutate and the only exception type that the decoder may raise.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from crc32c import crc32c
from ponor_broker.coordination.record_format import RecordFormatError
from ponor_broker.groups.record_codec import decode_entry as decode_offsets_entry
from ponor_broker.listener.frame_receiver import FrameReceiver
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.producer_state import ProducerStates
from ponor_broker.security.errors import AuthenticationFailedError
from ponor_broker.transactions.record_codec import decode_entry as decode_transaction_entry
from ponor_kafka.api import APIS, ApiKey
from ponor_kafka.codec import decode, encode, request_class
from ponor_kafka.compression import Codec, compress, decompress
from ponor_kafka.control_records import ControlType, EndMarker, build_end_marker, read_end_marker
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.headers import decode_request_header, encode_request_header
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.plain_produce import read_plain_produce, walk_plain_batch
from ponor_kafka.produce_walk import TOPIC_ID_MIN, VERSION_MAX, VERSION_MIN, walk_produce
from ponor_kafka.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, BatchView, split_batches
from ponor_kafka.record_batch import HEADER_BYTES as BATCH_HEADER_BYTES
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaEntry, MetaKey
from ponor_partition.meta_entry import decode_entry as decode_meta_entry
from ponor_partition.txn_entry import TxnEntry, decode_txn_entry
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_spark.clip import Clip
from ponor_spark.decode import kernel as kernel_native
from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.decode.errors import CorruptBatchError
from ponor_spark.decode.schema import FULL, HEADERS
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import decode_block
from s3stream.objects.format import ENTRY, ENTRY_BYTES, FOOTER_BYTES, BlockEntry, Footer
from s3stream.objects.index import decode_footer, decode_index
from s3stream.objects.writer import ObjectWriter
from s3stream.records import RECORD_HEADER, RECORD_HEADER_BYTES, StreamRecord, decode_records

from spark.tests import kernel_oracle
from tests.fuzz.accepted_batches import CONFIGS, AcceptedBatches
from tests.fuzz.hostile_batches import hostile_batch, sealed
from tests.fuzz.instances import random_message
from tests.fuzz.security import (
    FINAL,
    FIRST,
    client_hello,
    final_message,
    first_message,
    plain_message,
    tls_records,
)

DECOMPRESSED_BYTES_MAX: Final = 1 << 20
BOMB_BYTES: Final = 64 << 20
OBJECT_ID: Final = ObjectId(7)
SCRATCH_BYTES: Final = 512
SEED_BATCHES: Final = 40
PARTITION_BYTES_MAX: Final = 16 << 20
"""Memory of a partition with its readers."""
INSTANCES: Final = 2
TRANSACTION_VALUE: Final = (
    "00010000000000000fa000030000ea60010202610200000007000000018bcfe568000000018bcfe56418"
    "0200080000000000000fa002020002"
)
"""Random valid encodings per message and version."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder: valid inputs, and its exception type. `output_bytes_max`: limit of decompressed
    output, 0 if there is none.
    """

    family: str
    name: str
    seeds: tuple[bytes, ...]
    decode: Callable[[bytes], Any]
    refusal: type[Exception]
    output_bytes_max: int = 0


def all_decoders() -> list[Decoder]:
    """All decoders, the same at every call."""
    rng = random.Random(20)
    return [
        *_requests(rng),
        *_produce_walks(rng),
        Decoder("produce", "plain produce", tuple(_plain_requests()), _read_plain, KafkaWireError),
        Decoder("envelope", "request header", tuple(_headers(rng)), _decode_header, KafkaWireError),
        Decoder("envelope", "frames", (b"\0\0\0\3abc\0\0\0\1d", b"\0\0\0\0"), _decode_frames, KafkaWireError),
        Decoder(
            "records",
            "record batches",
            tuple(_batches()),
            _decode_batches,
            KafkaWireError,
            DECOMPRESSED_BYTES_MAX,
        ),
        *_decompressors(),
        Decoder(
            "produced",
            "accepted batches",
            tuple(hostile_batch(rng) for _ in range(SEED_BATCHES)),
            _process_accepted,
            KafkaWireError,
            PARTITION_BYTES_MAX,
        ),
        Decoder("objects", "stream records", tuple(_stream_records(rng)), _drain_records, ObjectCorruptError),
        Decoder("objects", "object index", (_index(),), _decode_index, ObjectCorruptError),
        Decoder("objects", "object footer", (_object()[-FOOTER_BYTES:],), _decode_footer, ObjectCorruptError),
        Decoder("objects", "block", (_object()[: _index_position()],), _decode_block, ObjectCorruptError),
        *_spark_decoders(),
        Decoder("partition state", "meta entries", _meta_entries(), _decode_meta, PartitionCorruptError),
        Decoder(
            "partition state", "producer rows", (_producers(),), _decode_producers, PartitionCorruptError
        ),
        Decoder(
            "partition state",
            "txn entries",
            (TxnEntry(7, 0, 5, 6).encode(),),
            lambda data: decode_txn_entry(data, "fuzz"),
            PartitionCorruptError,
        ),
        *_security(),
        Decoder("records", "markers", _markers(), _decode_marker, KafkaWireError),
        Decoder(
            "partition state",
            "offsets records",
            (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\2\0\1g"),
            _decode_offsets,
            RecordFormatError,
        ),
        Decoder(
            "partition state",
            "transaction records",
            (b"\0\0\0\1x" * 2, bytes.fromhex(TRANSACTION_VALUE)),
            _decode_transaction,
            RecordFormatError,
        ),
    ]


def _security() -> Sequence[Decoder]:
    return (
        Decoder("security", "SCRAM first", (FIRST,), first_message, AuthenticationFailedError),
        Decoder("security", "SCRAM final", (FINAL,), final_message, AuthenticationFailedError),
        Decoder("security", "PLAIN", (b"\0user\0secret",), plain_message, AuthenticationFailedError),
        Decoder("security", "TLS records", (client_hello(),), tls_records, ssl.SSLError),
    )


def _requests(rng: random.Random) -> Iterator[Decoder]:
    for key in APIS:
        kind = request_class(key)
        for version in range(kind.VERSION_MIN, kind.VERSION_MAX + 1):
            seeds = tuple(encode(random_message(kind, version, rng), version) for _ in range(INSTANCES))
            yield Decoder(
                "requests",
                f"{kind.__name__} v{version}",
                seeds,
                partial(decode, key, version),
                KafkaWireError,
            )


def _produce_walks(rng: random.Random) -> Iterator[Decoder]:
    for version in range(VERSION_MIN, VERSION_MAX + 1):
        seeds = tuple(encode(random_message(ProduceRequest, version, rng), version) for _ in range(4))
        yield Decoder("produce", f"produce walk v{version}", seeds, partial(_walk, version), KafkaWireError)


def _walk(version: int, data: bytes) -> None:
    walk_produce(version, memoryview(bytearray(data)), 0)


def _plain_requests() -> Iterator[bytes]:
    batch = build_batch([NewRecord(5, None, b"value", [("header", b"v")]), NewRecord(6, b"key", None)])
    for version in range(VERSION_MIN, VERSION_MAX + 1):
        topic = TopicProduceData("topic", partition_data=[PartitionProduceData(0, batch)])
        if version >= TOPIC_ID_MIN:
            topic = TopicProduceData(topic_id=bytes(range(16)), partition_data=topic.partition_data)
        header = encode_request_header(ApiKey.PRODUCE, version, 1, "client")
        yield header + encode(ProduceRequest(None, -1, 1000, [topic]), version)


def _read_plain(data: bytes) -> None:
    frame = bytearray(data)
    plain = read_plain_produce(frame)
    if plain is not None:
        walk_plain_batch(frame, *plain[5:7])


def _headers(rng: random.Random) -> Iterator[bytes]:
    for key in APIS:
        kind = request_class(key)
        for version in (kind.VERSION_MIN, kind.VERSION_MAX):
            yield encode_request_header(key, version, rng.getrandbits(31), rng.choice((None, "", "client")))


def _decode_header(data: bytes) -> None:
    decode_request_header(bytearray(data))


def _decode_frames(data: bytes) -> None:
    """As the broker's loop does: a piece through the shared buffer, then into the frame's own buffer."""
    receiver = FrameReceiver(lambda _: True, frame_bytes_max=1 << 16, control_bytes_max=1 << 12)
    rest = memoryview(data)
    while rest and receiver.failure is None:
        own = receiver.own_buffer()
        taken = min(len(rest), SCRATCH_BYTES if own is None else len(own))
        if own is None:
            receiver.received(rest, taken)
        else:
            own[:taken] = rest[:taken]
            receiver.received_own(taken)
        rest = rest[taken:]
    if receiver.failure is not None:
        raise receiver.failure


def _batches() -> Iterator[bytes]:
    records = [
        NewRecord(1_700_000_000_000 + n, b"key" if n % 2 else None, bytes(n), (("h", b"v"), ("n", None)))
        for n in range(20)
    ]
    for codec in Codec:
        yield bytes(build_batch(records, codec=codec))


def _decode_batches(data: bytes) -> None:
    for batch in split_batches(memoryview(bytearray(data))):
        batch.check_records(DECOMPRESSED_BYTES_MAX)
        for _ in batch.records(DECOMPRESSED_BYTES_MAX):
            pass


def _process_accepted(data: bytes) -> None:
    """Let all readers of a partition process the batch, and two others with the same keys."""
    rng = random.Random(data)
    partition = AcceptedBatches(rng.choice(CONFIGS))
    asyncio.run(partition.run([sealed(data), hostile_batch(rng), hostile_batch(rng)]))
    if not partition.accepted:
        raise KafkaWireError("Produce accepts none of the batches")


def _decompressors() -> Iterable[Decoder]:
    """Includes compression bombs: a few kilobytes that would become 64 MiB."""
    bomb = bytes(BOMB_BYTES)
    for codec in Codec:
        if codec is Codec.NONE:
            continue
        seeds = tuple(compress(codec, data) for data in (b"", b"text " * 100, bytes(range(256)) * 40, bomb))
        yield Decoder(
            "compression",
            f"{codec.name.lower()} data",
            seeds,
            partial(decompress, codec, output_bytes_max=DECOMPRESSED_BYTES_MAX),
            KafkaWireError,
            DECOMPRESSED_BYTES_MAX,
        )
    nested = gzip.compress(gzip.compress(bomb))
    yield Decoder(
        "compression",
        "gzip in gzip",
        (nested, nested * 3),
        partial(decompress, Codec.GZIP, output_bytes_max=DECOMPRESSED_BYTES_MAX),
        KafkaWireError,
        DECOMPRESSED_BYTES_MAX,
    )


def _stream_records(rng: random.Random) -> Iterator[bytes]:
    for count in (1, 3):
        encoded = bytearray()
        for number in range(count):
            payload = rng.randbytes(rng.randrange(200))
            record = StreamRecord(StreamId(number), StreamEpoch(1), 10 * number, 10, -1, payload)
            encoded += record.encode_header() + payload
        yield bytes(encoded)


def _drain_records(data: bytes) -> None:
    for _ in decode_records(data):
        pass


@cache
def _object() -> bytes:
    """A stream set object of one stream."""
    writer = ObjectWriter(OBJECT_ID)
    for number in range(5):
        writer.add(StreamRecord(StreamId(1), StreamEpoch(1), 10 * number, 10, number, bytes(100)))
    return b"".join(writer.finish().buffers)


def _index_position() -> int:
    return decode_footer("fuzz", OBJECT_ID, _object(), len(_object())).index_position


def _index() -> bytes:
    return _object()[_index_position() : -FOOTER_BYTES]


def _decode_footer(data: bytes) -> None:
    decode_footer("fuzz", OBJECT_ID, data, len(_object()))


def _decode_index(data: bytes) -> None:
    """Entries with matching checksums; otherwise damage would be refused before any entry is read."""
    position = _index_position()
    tail = Footer(OBJECT_ID, position, len(data), len(data) // ENTRY_BYTES, crc32c(data)).encode()
    footer = decode_footer("fuzz", OBJECT_ID, tail, position + len(data) + len(tail))
    decode_index("fuzz", footer, data)


def _decode_block(data: bytes) -> None:
    """As above."""
    entry = BlockEntry(*struct.unpack(ENTRY.format, _index()[:ENTRY_BYTES]))
    decode_block("fuzz", entry._replace(size_bytes=len(data), crc=crc32c(data)), data)


def _spark_decoders() -> Iterator[Decoder]:
    """Data blocks as executors decode them, by both kernels."""
    seeds = tuple(_partition_block(codec) for codec in Codec)
    for name, kernel in (("compiled", kernel_native.RowBuilder), ("oracle", kernel_oracle.RowBuilder)):
        decode_rows = partial(_decode_rows, kernel)
        yield Decoder("spark", f"rows, {name}", seeds, decode_rows, CorruptBatchError, DECOMPRESSED_BYTES_MAX)


def _partition_block(codec: Codec) -> bytes:
    """Three batches of a partition's Data stream, with a gap before the last."""
    records = [
        NewRecord(n, b"key" if n % 2 else None, bytes(n), (("h", b"v"), ("é", None))) for n in range(4)
    ]
    block = b""
    for offset, count in ((0, 4), (4, 4), (8, 9)):
        batch = bytes(build_batch(records, codec=codec))
        block += StreamRecord(StreamId(1), StreamEpoch(1), offset, count, 9, batch).encode_header() + batch
    return block


def _decode_rows(kernel: Any, data: bytes) -> None:
    decoder = BatchDecoder(
        (*FULL.names, HEADERS),
        clip=Clip("fuzz", 0, 1, 16),
        rows_max=3,
        decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
        kernel=kernel,
    )
    decoder.feed_block(_with_batch_checksums(data), 0)
    for batch in decoder.finish():
        batch.validate(full=True)


def _with_batch_checksums(data: bytes) -> bytes:
    """Checksums are recomputed for each batch that is still at its stream record; otherwise damage
    would be refused before any record is read.
    """
    block, at = bytearray(data), 0
    while at + RECORD_HEADER_BYTES + BATCH_HEADER_BYTES <= len(block):
        batch_at = at + RECORD_HEADER_BYTES
        at = batch_at + RECORD_HEADER.unpack_from(block, at)[-1]
        crc = crc32c(bytes(block[batch_at + ATTRIBUTES_POSITION : at]))
        struct.pack_into(">I", block, batch_at + CRC_POSITION, crc)
    return bytes(block)


def _meta_entries() -> tuple[bytes, ...]:
    return (
        MetaEntry(MetaKey("log"), b"value").encode(),
        MetaEntry(MetaKey("producers"), bytes(300), is_change=True).encode(),
    )


def _producers() -> bytes:
    states = ProducerStates()
    states.append(ProducerBatch(1, 0, 0, 3), 0, 3, 7)
    states.append_transactional(ProducerBatch(2, 0, 0, 1), 3, 4, 7)
    states.append_marker(3, 5, EndMarker(ControlType.ABORT, 9), 4, 7)
    states.confirm(5)
    return states.snapshot()


def _decode_producers(data: bytes) -> None:
    states = ProducerStates()
    states.restore(data)
    for _ in states.active():
        pass


def _markers() -> tuple[bytes, ...]:
    return tuple(bytes(build_end_marker(7, 1, EndMarker(kind, 9), 5)) for kind in ControlType)


def _decode_marker(data: bytes) -> None:
    read_end_marker(BatchView(memoryview(data)))


def _decode_meta(data: bytes) -> None:
    decode_meta_entry(data, "fuzz")


def _decode_transaction(data: bytes) -> None:
    decode_transaction_entry(data, None)
    decode_transaction_entry(b"\0\0\0\1x", data)


def _decode_offsets(data: bytes) -> None:
    middle = len(data) // 2
    decode_offsets_entry(data, None)
    decode_offsets_entry(data[:middle], data[middle:])
