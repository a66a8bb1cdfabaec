"""Record batches against the builders and readers of aiokafka and kafka-python, and damaged batches."""

import random
import warnings
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_kafka.compression import Codec
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import HEADER_BYTES, BatchView, OldRecordFormatError, batch_bytes, split_batches
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_kafka.records import Header, Record

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python 3.0 loads its schemas with a deprecated API
    from kafka.record import default_records as kafka_python_records

BOUND = 1 << 24
T0 = 1_700_000_000_000

# Mixed sizes, null and empty keys and values, headers with null values.
CONTENT = [
    NewRecord(T0, None, b"value"),
    NewRecord(T0 + 5, b"key", None, [("h", b"1"), ("leer", b""), ("ü", b"\x00\xff")]),
    NewRecord(T0 - 7, b"", b""),
    NewRecord(T0 + 40, b"k" * 200, b"abc" * 20_000, []),
    NewRecord(T0 + 40, b"last", bytes(range(256)), [("null", None)]),
]
EXPECTED = [
    Record(
        100 + index,
        record.timestamp,
        None if record.key is None else bytes(record.key),
        None if record.value is None else bytes(record.value),
        tuple(Header(key, None if value is None else bytes(value)) for key, value in record.headers),
    )
    for index, record in enumerate(CONTENT)
]


def view(batch: bytes | bytearray) -> BatchView:
    return BatchView(memoryview(bytearray(batch)))


def build_with(library: Any, codec: Codec, **options: Any) -> bytes:
    fields: dict[str, Any] = {
        "magic": 2,
        "compression_type": int(codec),
        "is_transactional": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "batch_size": 1 << 20,
    }
    builder = library.DefaultRecordBatchBuilder(**(fields | options))
    for index, record in enumerate(CONTENT):
        headers = [(key, value) for key, value in record.headers if value is not None]
        assert builder.append(index, record.timestamp, record.key, record.value, headers)
    return bytes(builder.build())


LIBRARIES = pytest.mark.parametrize(
    "library", [aiokafka_records, kafka_python_records], ids=["aiokafka", "kafka-python"]
)
CODECS = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)


@LIBRARIES
@CODECS
def test_batch_of_a_client_is_readable(library: Any, codec: Codec) -> None:
    batch = view(build_with(library, codec))
    batch.check_crc()
    batch.stamp(100, 12)
    batch.check_crc()
    batch.check_records(BOUND)

    assert batch.codec is codec
    assert (batch.record_count, batch.last_offset, batch.next_offset) == (5, 104, 105)
    assert (batch.first_timestamp, batch.max_timestamp) == (T0, T0 + 40)
    without_null_header = [*EXPECTED[:4], EXPECTED[4]._replace(headers=())]
    assert list(batch.records(BOUND)) == without_null_header
    assert not batch.has_producer_id
    assert BatchView(batch.view).leader_epoch == 12


@LIBRARIES
@CODECS
def test_client_reads_our_batch(library: Any, codec: Codec) -> None:
    batch = library.DefaultRecordBatch(bytes(build_batch(CONTENT, base_offset=100, codec=codec)))

    assert batch.validate_crc()
    seen = [
        Record(
            one.offset, one.timestamp, one.key, one.value, tuple(Header(*header) for header in one.headers)
        )
        for one in batch
    ]
    assert seen == EXPECTED


@LIBRARIES
def test_producer_fields_equal_a_clients(library: Any) -> None:
    options = {"is_transactional": 1, "producer_id": 4711, "producer_epoch": 3, "base_sequence": 2**31 - 3}
    batch = view(build_with(library, Codec.NONE, **options))

    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4711, 3, 2**31 - 3)
    assert batch.is_transactional
    assert batch.has_producer_id
    assert not batch.is_control
    assert batch.last_sequence == 1  # wraps from 2^31 - 1 to 0


def test_uncompressed_batch_equals_a_clients_byte_for_byte() -> None:
    plain = [record._replace(headers=()) for record in CONTENT]
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, 0, 0, 9, 1, 7, 1 << 20)
    for index, record in enumerate(plain):
        builder.append(index, record.timestamp, record.key, record.value, [])
    ours = build_batch(plain, producer_id=9, producer_epoch=1, base_sequence=7)

    assert bytes(ours) == bytes(builder.build())


def test_control_and_log_append_time() -> None:
    batch = view(
        build_batch([(T0, b"\0\0\0\1", b"")], transactional=True, control=True, log_append_time_ms=T0 + 99)
    )
    assert batch.is_control
    assert batch.is_log_append_time
    assert [record.timestamp for record in batch.records(BOUND)] == [T0 + 99]
    assert batch.delete_horizon_ms is None

    batch.set_log_append_time(T0 + 500)
    batch.check_crc()
    assert [record.timestamp for record in BatchView(batch.view).records(BOUND)] == [T0 + 500]
    assert batch.find_timestamp(T0 + 500, BOUND) == (0, T0 + 500)


@CODECS
def test_find_timestamp_returns_the_first_record_not_older(codec: Codec) -> None:
    batch = view(build_batch(CONTENT, base_offset=100, codec=codec))

    assert batch.find_timestamp(0, BOUND) == (100, T0)
    assert batch.find_timestamp(T0 + 1, BOUND) == (101, T0 + 5)
    assert batch.find_timestamp(T0 + 6, BOUND) == (103, T0 + 40)
    assert batch.find_timestamp(T0 + 40, BOUND) == (103, T0 + 40)
    assert batch.find_timestamp(T0 + 41, BOUND) is None


class TestSplitting:
    def test_consecutive_batches_are_split(self) -> None:
        batches = [build_batch([(T0, None, b"x" * size)], base_offset=size) for size in (0, 10, 1000)]
        blob = memoryview(bytearray(b"".join(batches)))

        assert [one.base_offset for one in split_batches(blob)] == [0, 10, 1000]
        assert [bytes(one.view) for one in split_batches(blob)] == [bytes(one) for one in batches]
        assert list(split_batches(memoryview(b""))) == []
        assert batch_bytes(blob, len(batches[0])) == len(batches[1])

    def test_truncation_at_every_byte_is_a_wire_error(self) -> None:
        batches = [bytes(build_batch([(T0, None, b"x" * 20)])) for _ in range(2)]
        blob = b"".join(batches)
        for cut in range(1, len(blob)):
            if cut != len(batches[0]):
                with pytest.raises(KafkaWireError):
                    list(split_batches(memoryview(blob)[:cut]))

    @pytest.mark.parametrize("length", [-1, -(2**31), 0, 4, 2**31 - 1])
    def test_wrong_length_is_a_wire_error(self, length: int) -> None:
        batch = build_batch([(T0, None, b"x" * 20)])
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(KafkaWireError):
            list(split_batches(memoryview(batch)))

    @pytest.mark.parametrize("magic", [0, 1, 3, 255])
    def test_other_formats_are_distinguished(self, magic: int) -> None:
        batch = build_batch([(T0, None, b"x" * 20)])
        batch[16] = magic
        with pytest.raises(OldRecordFormatError):
            list(split_batches(memoryview(batch)))


class TestDamage:
    def test_every_flipped_bit_after_the_magic_breaks_the_checksum(self) -> None:
        whole = build_batch(CONTENT[:3])
        for position in range(17, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << (position % 8)
            with pytest.raises(KafkaWireError, match="CRC"):
                view(damaged).check_crc()

    @CODECS
    def test_damaged_records_decode_or_are_a_wire_error(self, codec: Codec) -> None:
        whole = build_batch([CONTENT[0], CONTENT[1], CONTENT[2]] * 3, codec=codec)
        rng = random.Random(codec)
        for _ in range(400):
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(57, len(damaged))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            for use in (_read_all, _check, _find):
                try:
                    use(view(damaged))
                except KafkaWireError:
                    continue

    @pytest.mark.parametrize("count", [-1, 0, 2, 4, 2**31 - 1])
    def test_wrong_record_count_is_a_wire_error(self, count: int) -> None:
        batch = view(build_batch(CONTENT[:3]))
        batch.record_count = count
        with pytest.raises(KafkaWireError):
            batch.check_records(BOUND)

    def test_offset_deltas_must_count_up(self) -> None:
        batch = build_batch([(T0, None, b"a"), (T0, None, b"b")])
        second = HEADER_BYTES + (len(batch) - HEADER_BYTES) // 2
        batch[second + 3] = 6  # the second record's delta becomes 3
        with pytest.raises(KafkaWireError, match="offset delta 3"):
            view(batch).check_records(BOUND)

    @pytest.mark.parametrize("number", [5, 6, 7])
    def test_unknown_codec_is_a_wire_error(self, number: int) -> None:
        batch = view(build_batch([(T0, None, b"a")]))
        batch.attributes = number
        with pytest.raises(KafkaWireError, match="codec"):
            list(batch.records(BOUND))

    def test_limit_on_decompressed_bytes_holds(self) -> None:
        batch = view(build_batch([(T0, None, bytes(1_000_000))], codec=Codec.ZSTD))
        assert batch.size_bytes < 1000
        with pytest.raises(KafkaWireError, match="beyond 500000"):
            list(batch.records(500_000))


def test_empty_batch_of_compaction_is_valid() -> None:
    batch = view(build_batch([], base_offset=7, producer_id=1, producer_epoch=0, base_sequence=3))
    assert list(batch.records(BOUND)) == []
    assert batch.find_timestamp(0, BOUND) is None
    batch.check_crc()


@settings(deadline=None, max_examples=150)
@given(
    records=st.lists(
        st.builds(
            NewRecord,
            st.integers(min_value=0, max_value=2**50),
            st.none() | st.binary(max_size=30),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3),
        ),
        min_size=1,
        max_size=8,
    ),
    codec=st.sampled_from(Codec),
    base_offset=st.integers(min_value=0, max_value=2**60),
)
def test_any_records_round_trip(records: list[NewRecord], codec: Codec, base_offset: int) -> None:
    try:
        batch = view(build_batch(records, codec=codec, base_offset=base_offset))
    except UnicodeEncodeError:
        return
    batch.check_crc()
    batch.check_records(BOUND)
    seen = list(batch.records(BOUND))

    assert [(one.timestamp, one.key, one.value) for one in seen] == [record[:3] for record in records]
    assert [list(one.headers) for one in seen] == [list(record.headers) for record in records]
    assert [one.offset for one in seen] == list(range(base_offset, base_offset + len(records)))


def _read_all(batch: BatchView) -> None:
    list(batch.records(BOUND))


def _check(batch: BatchView) -> None:
    batch.check_records(BOUND)


def _find(batch: BatchView) -> None:
    batch.find_timestamp(T0 + 1, BOUND)
