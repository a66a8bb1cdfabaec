"""Produce: accepted and refused batches, and error codes."""

from __future__ import annotations

import struct

from crc32c import crc32c
from ponor_kafka.compression import Codec
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_batch import HEADER_BYTES
from ponor_kafka.record_builder import NewRecord, build_batch

from tests.oracle.asking import batch, fetch, idempotent, list_offsets, produce, record
from tests.oracle.narrator import Narrator, Topic
from tests.oracle.story import story

COUNT_POSITION, LAST_DELTA_POSITION, CRC_POSITION, ATTRIBUTES_POSITION, LENGTH_POSITION = 57, 23, 17, 21, 8


def patched(data: bytes, position: int, form: str, value: int, *, fix_crc: bool = True) -> bytes:
    """A batch with one changed header field and a correct checksum."""
    changed = bytearray(data)
    struct.pack_into(form, changed, position, value)
    if fix_crc:
        struct.pack_into(">I", changed, CRC_POSITION, crc32c(bytes(changed[ATTRIBUTES_POSITION:])))
    return bytes(changed)


@story("One batch, in every version")
def produce_versions(k: Narrator) -> None:
    topic = k.topic("produce-versions")
    for version in range(3, 14):
        k.ask(produce(topic, batch(2)), version, "two records")
    k.ask(fetch(topic, 0), 12, "all of them come back")


@story("acks 0, 1 and -1, and invalid values")
def produce_acks(k: Narrator) -> None:
    topic = k.topic("produce-acks")
    k.tell(produce(topic, batch(), acks=0), 9, "no answer wanted")
    k.ask(produce(topic, batch(), acks=1), 9, "acks=1")
    k.ask(produce(topic, batch(), acks=-1), 9, "acks=-1")
    for acks in (2, -2, 32767):
        k.ask(produce(topic, batch(), acks=acks), 9, f"acks={acks}")
    k.ask(fetch(topic, 0), 12, "three records are there")


@story("Unknown topics and partitions")
def produce_nowhere(k: Narrator) -> None:
    topic = k.topic("produce-nowhere")
    k.ask(produce(topic, batch(), partition=1), 9, "an unknown partition")
    k.ask(produce(topic, batch(), partition=-1), 9, "a negative partition")
    k.ask(produce(Topic("produce-missing", bytes(16)), batch()), 9, "an unknown topic")
    k.ask(produce(Topic("not valid", bytes(16)), batch()), 9, "an invalid topic name")
    k.ask(produce(Topic("x", bytes(range(16))), batch()), 13, "an unknown id")
    k.ask(produce(Topic("x", bytes(16)), batch()), 13, "no id")


@story("Several partitions and topics in one request, valid and invalid")
def produce_several(k: Narrator) -> None:
    first, second = k.topic("produce-several-a", 2), k.topic("produce-several-b")
    data = [
        TopicProduceData(
            first.name, first.id, [PartitionProduceData(0, batch(3)), PartitionProduceData(1, batch(2))]
        ),
        TopicProduceData(
            second.name, second.id, [PartitionProduceData(0, batch(1)), PartitionProduceData(7, batch(1))]
        ),
    ]
    k.ask(ProduceRequest(None, -1, 10_000, data), 9, "one of four is nowhere")
    k.ask(ProduceRequest(None, -1, 10_000, []), 9, "nothing at all")
    k.ask(
        ProduceRequest(None, -1, 10_000, [TopicProduceData(first.name, first.id, [])]),
        9,
        "a topic with no partitions",
    )


@story("Damaged batches and batches with wrong headers")
def produce_damaged(k: Narrator) -> None:
    topic = k.topic("produce-damaged")
    good = batch(3)
    for version in (7, 9):
        k.ask(
            produce(topic, good[:-1] + bytes([good[-1] ^ 0xFF])), version, "a flipped bit in the last record"
        )
    k.ask(produce(topic, patched(good, CRC_POSITION, ">I", 1, fix_crc=False)), 9, "a wrong CRC")
    k.ask(produce(topic, patched(good, COUNT_POSITION, ">i", 2)), 9, "counts one record too few")
    k.ask(produce(topic, patched(good, COUNT_POSITION, ">i", 4)), 9, "counts one record too many")
    k.ask(produce(topic, patched(good, COUNT_POSITION, ">i", 0)), 9, "counts no records")
    k.ask(produce(topic, patched(good, COUNT_POSITION, ">i", -1)), 9, "counts -1 records")
    k.ask(produce(topic, patched(good, COUNT_POSITION, ">i", 2_147_483_647)), 9, "counts 2^31-1 records")
    k.ask(produce(topic, patched(good, LAST_DELTA_POSITION, ">i", 5)), 9, "a last offset delta too large")
    k.ask(produce(topic, patched(good, LAST_DELTA_POSITION, ">i", -1)), 9, "a negative last offset delta")
    k.ask(produce(topic, patched(good, LENGTH_POSITION, ">i", 10, fix_crc=False)), 9, "a length of 10")
    k.ask(produce(topic, patched(good, LENGTH_POSITION, ">i", -1, fix_crc=False)), 9, "a length of -1")
    k.ask(
        produce(topic, patched(good, LENGTH_POSITION, ">i", 1_000_000, fix_crc=False)),
        9,
        "a length beyond the request",
    )
    k.ask(produce(topic, good[:40]), 9, "half a header")
    k.ask(produce(topic, good + b"\x00\x00\x00"), 9, "three bytes behind it")
    k.ask(produce(topic, good[:16] + b"\x01" + good[17:]), 9, "magic 1")
    k.ask(produce(topic, good[:16] + b"\x00" + good[17:]), 9, "magic 0")
    k.ask(produce(topic, good[:16] + b"\x03" + good[17:]), 9, "magic 3")
    k.ask(list_offsets(topic, -1), 7, "nothing was stored")


@story("Records fields without a batch, or with two")
def produce_not_one_batch(k: Narrator) -> None:
    topic = k.topic("produce-not-one")
    k.ask(produce(topic, None), 9, "null")
    k.ask(produce(topic, b""), 9, "empty")
    k.ask(produce(topic, batch() + batch()), 9, "two batches")
    k.ask(produce(topic, bytes(build_batch([]))), 9, "a batch without records")
    k.ask(list_offsets(topic, -1), 7, "what was stored")


@story("Attribute bits that clients must not set")
def produce_forbidden_bits(k: Narrator) -> None:
    topic = k.topic("produce-bits")
    k.ask(produce(topic, batch(control=True)), 9, "the control bit")
    k.ask(produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 0x40)), 9, "the delete horizon bit")
    k.ask(produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 0x80)), 9, "an unknown bit")
    k.ask(
        produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 0x08)),
        9,
        "log append time, which is the broker's to set",
    )
    k.ask(produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 5)), 9, "a codec that does not exist")
    k.ask(produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 7)), 9, "codec 7")
    k.ask(produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 1)), 9, "gzip that is not")
    k.ask(produce(topic, patched(batch(), ATTRIBUTES_POSITION, ">h", 4)), 9, "zstd that is not")
    k.ask(fetch(topic, 0), 12, "what was stored")


@story("Every codec; zstd only in versions that support it")
def produce_codecs(k: Narrator) -> None:
    topic = k.topic("produce-codecs")
    for codec in Codec:
        k.ask(produce(topic, batch(5, codec=codec)), 9, codec.name.lower())
    k.ask(produce(topic, batch(5, codec=Codec.ZSTD)), 6, "zstd in version 6")
    k.ask(produce(topic, batch(5, codec=Codec.ZSTD)), 7, "zstd in version 7")
    for version in (4, 9, 10, 12):
        k.ask(fetch(topic, 20, partition_bytes=1), version, f"zstd fetched in version {version}")
    k.ask(fetch(topic, 0), 12, "all of them")


def in_lz4(head: str, tail: str = "00000000") -> bytes:
    """A batch of two records in one uncompressed LZ4 frame; `head` is the frame's header in hex."""
    plain = bytes(build_batch([record(), record(key=None)]))
    body, first = plain[HEADER_BYTES:], plain[:HEADER_BYTES]
    block = struct.pack("<I", len(body) | 1 << 31) + body
    whole = first + bytes.fromhex(head) + block + bytes.fromhex(tail)
    whole = patched(whole, LENGTH_POSITION, ">i", len(whole) - 12, fix_crc=False)
    return patched(whole, ATTRIBUTES_POSITION, ">h", Codec.LZ4)


@story("LZ4 frames: those that Kafka's reader accepts, and those that only the LZ4 library reads")
def produce_lz4_frames(k: Narrator) -> None:
    topic = k.topic("produce-lz4-frames")
    independent, linked = "04224d18607073", "04224d184070df"
    k.ask(produce(topic, in_lz4(independent)), 9, "independent blocks")
    k.ask(produce(topic, in_lz4(linked)), 9, "linked blocks")
    k.ask(produce(topic, in_lz4("04224d1861700000000000")), 9, "a dictionary")
    k.ask(produce(topic, in_lz4("04224d1862700000000000")), 9, "a reserved flag")
    k.ask(produce(topic, in_lz4("04224d18a07000")), 9, "version 2")
    k.ask(produce(topic, in_lz4("04224d18607000")), 9, "a wrong checksum of the head")
    k.ask(produce(topic, in_lz4("502a4d1800000000" + independent)), 9, "a frame to be skipped before it")
    k.ask(produce(topic, in_lz4(independent, "")), 9, "no end")
    k.ask(fetch(topic, 0), 12, "what was stored")


@story("Keys, values and headers that are null or empty")
def produce_nulls(k: Narrator) -> None:
    topic = k.topic("produce-nulls")
    records = [
        NewRecord(1000, None, None),
        NewRecord(1000, b"", b""),
        NewRecord(1000, b"k", None, [("a", None), ("a", b""), ("", b"v")]),
        NewRecord(1000, None, b"v", [("header", b"\x00\xff")]),
    ]
    k.ask(produce(topic, bytes(build_batch(records))), 9, "four records")
    k.ask(fetch(topic, 0), 12, "they come back")


@story("A compacted topic requires keys, and the error lists records without one")
def produce_without_key(k: Narrator) -> None:
    topic = k.topic("produce-compacted", 1, {"cleanup.policy": "compact"})
    mixed = bytes(build_batch([record(), record(key=None), record(), record(key=None)]))
    for version in (7, 8, 9, 12):
        k.ask(produce(topic, mixed), version, "two of four have no key")
    compressed = bytes(build_batch([record(), record(key=None)], codec=Codec.LZ4))
    k.ask(produce(topic, compressed), 9, "compressed")
    k.ask(produce(topic, batch(3)), 9, "all have keys")
    k.ask(list_offsets(topic, -1), 7, "only these were stored")


@story("Batches as large as max.message.bytes allows, and larger")
def produce_too_large(k: Narrator) -> None:
    topic = k.topic("produce-too-large", 1, {"max.message.bytes": "1000"})
    small = len(build_batch([record(b"")]))
    for size in (1000, 1001):
        k.ask(produce(topic, bytes(build_batch([record(bytes(size - small - 2))]))), 9, f"about {size} bytes")
    k.ask(produce(topic, bytes(build_batch([record(bytes(2000))]))), 9, "2000 bytes")
    packed = bytes(build_batch([record(bytes(100_000))], codec=Codec.GZIP))
    k.ask(produce(topic, packed), 9, "100 KB that compress to less")
    default = k.topic("produce-too-large-default")
    k.ask(
        produce(default, bytes(build_batch([record(bytes(1_048_588))], codec=Codec.NONE))),
        9,
        "more than a megabyte, by default",
    )


@story("Timestamps too far from the broker's clock")
def produce_timestamps(k: Narrator) -> None:
    topic = k.topic("produce-timestamps", 1, {"message.timestamp.before.max.ms": "3600000"})
    far = 9_000_000_000_000
    for version in (7, 9):
        k.ask(produce(topic, batch(2, at=far)), version, "in the year 2255")
        k.ask(produce(topic, batch(2, at=1000)), version, "in 1970, where only an hour is allowed")
    k.ask(produce(topic, batch(1, at=-1)), 9, "no timestamp")
    k.ask(produce(topic, batch(1, at=-2)), 9, "a negative timestamp")
    mixed = k.topic("produce-timestamps-default")
    records = [record(at=1000), record(at=far), record(at=1000)]
    k.ask(produce(mixed, bytes(build_batch(records))), 9, "one of three is in the future")
    k.ask(produce(mixed, batch(1, at=1000)), 9, "the past is accepted by default")
    k.ask(produce(mixed, batch(1, at=-1)), 9, "no timestamp, by default")
    k.ask(produce(mixed, batch(1, at=-5)), 9, "a negative timestamp, by default")


@story("LogAppendTime: timestamps of the broker's clock")
def produce_log_append_time(k: Narrator) -> None:
    topic = k.topic("produce-append-time", 1, {"message.timestamp.type": "LogAppendTime"})
    k.ask(produce(topic, batch(3)), 9, "old timestamps")
    k.settle()
    k.ask(produce(topic, batch(3, codec=Codec.GZIP)), 9, "compressed")
    k.settle()
    k.ask(produce(topic, batch(1, at=9_000_000_000_000)), 9, "a timestamp in the future")
    k.ask(fetch(topic, 0), 12, "all have the time of their arrival")
    k.ask(list_offsets(topic, 1), 7, "the first since 1970")
    k.ask(list_offsets(topic, -3), 7, "the largest timestamp")


@story("compression.type: the broker recompresses")
def produce_recompressed(k: Narrator) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed", "producer"):
        topic = k.topic(f"produce-to-{codec}", 1, {"compression.type": codec})
        k.ask(produce(topic, batch(3)), 9, f"plain to {codec}")
        k.ask(produce(topic, batch(3, codec=Codec.LZ4)), 9, f"lz4 to {codec}")
        k.ask(fetch(topic, 0), 12, f"as {codec}")


@story("A producer with an id: sequences, duplicates, gaps, epochs")
def produce_idempotent(k: Narrator) -> None:
    topic = k.topic("produce-idempotent")
    me = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    for number in range(7):
        k.ask(produce(topic, idempotent(me, number)), 9, f"sequence {number}")
    k.ask(produce(topic, idempotent(me, 6)), 9, "the last again")
    k.ask(produce(topic, idempotent(me, 2)), 9, "the fifth last again")
    k.ask(produce(topic, idempotent(me, 1)), 9, "older than the five that are remembered")
    k.ask(produce(topic, idempotent(me, 5, 2)), 9, "two that overlap the last")
    k.ask(produce(topic, idempotent(me, 9)), 9, "a gap")
    k.ask(produce(topic, idempotent(me, 0, epoch=1)), 9, "the next epoch begins at 0")
    k.ask(produce(topic, idempotent(me, 7, epoch=0)), 9, "the old epoch")
    k.ask(produce(topic, idempotent(me, 5, epoch=2)), 9, "an epoch that does not begin at 0")
    k.ask(produce(topic, idempotent(me, 1, epoch=1)), 9, "the right one goes on")
    k.ask(fetch(topic, 0), 12, "each of them once")


@story("An idempotent producer: first sequences, wrapping, and invalid values")
def produce_idempotent_edges(k: Narrator) -> None:
    topic = k.topic("produce-idempotent-edges", 4)
    me = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    k.ask(produce(topic, idempotent(me, 10)), 9, "a first sequence of 10")
    last = 2_147_483_647
    k.ask(produce(topic, idempotent(me, last - 1, 1), partition=1), 9, "near the end of the sequences")
    k.ask(produce(topic, idempotent(me, last, 3), partition=1), 9, "a batch that wraps inside")
    k.ask(produce(topic, idempotent(me, 2), partition=1), 9, "goes on behind the wrap")
    k.ask(produce(topic, idempotent(me, -1), partition=2), 9, "an id without a sequence")
    k.ask(produce(topic, idempotent(me, 0, epoch=-1), partition=2), 9, "an id without an epoch")
    k.ask(produce(topic, batch(base_sequence=5), partition=3), 9, "a sequence without an id")
    k.ask(
        produce(topic, batch(producer_id=123_456_789, producer_epoch=0, base_sequence=0), partition=3),
        9,
        "an id that was never assigned",
    )
    k.ask(fetch(topic, 0, partition=1), 12, "what wrapped")


@story("Assignment of producer ids")
def init_producer_id(k: Narrator) -> None:
    for version in range(6):
        k.ask(InitProducerIdRequest(None, 60_000), version, "an id")
    known = k.ask(InitProducerIdRequest(None, 60_000), 4, "one more")
    again = InitProducerIdRequest(None, 60_000, known.producer_id, known.producer_epoch)
    k.ask(again, 4, "with an existing id")
    k.ask(InitProducerIdRequest(None, 60_000, 987_654_321, -1), 4, "an id without an epoch")
    k.ask(InitProducerIdRequest(None, 60_000, -1, 5), 4, "an epoch without an id")
    k.ask(InitProducerIdRequest(None, -1), 4, "a negative timeout")
    k.ask(InitProducerIdRequest("", 60_000), 4, "an empty transactional id")
