"""Tests of decoding single kinds of batches."""

from __future__ import annotations

from operator import methodcaller

import cramjam
import pytest
from ponor_kafka.compression import Codec
from ponor_kafka.record_batch import HEADER_BYTES
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.decode.batches import QUEUED_BYTES_MAX, BatchDecoder
from ponor_spark.decode.errors import CorruptBatchError
from ponor_spark.decode.schema import FULL, HEADERS, schema_of

from spark.tests.decoding import EVERYTHING, EVERYWHERE, KERNELS, decode, rows_of
from spark.tests.stored_batches import MS, Kept, Kind, Log, data_block, stored_batch, with_checksum

RECORDS = [Kept(n, MS + n, b"key %d" % n, b"value %d" % n) for n in range(5)]


def test_a_row_has_the_columns_of_sparks_kafka_connector() -> None:
    headers = (("trace", b"1"), ("trace", None), ("", b""))
    batch = stored_batch([Kept(0, MS, b"k", None, headers), Kept(1, -1, None, b"")])
    first, second = rows_of(decode(lambda decoder: decoder.feed(batch, 40)))
    assert first == {
        "key": b"k",
        "value": None,
        "topic": "t",
        "partition": 3,
        "offset": 40,
        "timestamp": MS * 1000,
        "timestampType": 0,
        "headers": [
            {"key": "trace", "value": b"1"},
            {"key": "trace", "value": None},
            {"key": "", "value": b""},
        ],
    }
    assert (second["key"], second["value"], second["timestamp"], second["headers"]) == (
        None,
        b"",
        -1000,
        None,
    )


def test_types_are_those_that_spark_derives() -> None:
    schema = schema_of([*FULL.names, HEADERS])
    assert [str(field.type) for field in schema] == [
        "binary",
        "binary",
        "string",
        "int32",
        "int64",
        "timestamp[us, tz=UTC]",
        "int32",
        "list<element: struct<key: string, value: binary>>",
    ]
    assert all(field.nullable for field in schema)


@pytest.mark.parametrize("columns", [[], ["key", "key"], ["Key"], ["value", "nonsense"]])
def test_columns_that_cannot_be_are_named(columns: list[str]) -> None:
    with pytest.raises(ValueError, match="column"):
        schema_of(columns)


def test_the_brokers_time_is_the_time_of_all_records_of_a_batch() -> None:
    batch = stored_batch(RECORDS, Kind(append_time=MS + 99))
    rows = rows_of(decode(lambda decoder: decoder.feed(batch, 0)))
    assert {(row["timestamp"], row["timestampType"]) for row in rows} == {((MS + 99) * 1000, 1)}


def test_offsets_come_from_the_stream_and_not_from_the_header() -> None:
    """The batch's checksum does not cover base offset and leader epoch."""
    batch = stored_batch(RECORDS, base_offset=123_456, span=5)
    rows = rows_of(decode(lambda decoder: decoder.feed_block(data_block([batch], [5], 1_000), -400)))
    assert [row["offset"] for row in rows] == [600, 601, 602, 603, 604]


def test_a_compacted_batch_ends_where_its_stream_record_ends() -> None:
    """Records 1, 2 and 4 of [0, 5), as in docs/formats/partition-meta.md: counts 2, 1 and 2."""
    batches = [stored_batch([Kept(0, MS, b"k", b"%d" % n)]) for n in (1, 2, 4)]
    rows = rows_of(decode(lambda decoder: decoder.feed_block(data_block(batches, [2, 1, 2], 70), -70)))
    assert [(row["offset"], row["value"]) for row in rows] == [(1, b"1"), (2, b"2"), (4, b"4")]


def test_holes_and_headers_alone_give_no_rows() -> None:
    log = Log()
    log.add([], span=1000)
    log.add(RECORDS)
    log.add([], Kind(producer_id=9), span=3)
    rows = rows_of(decode(lambda decoder: decoder.feed_block(log.block(), 0)))
    assert [row["offset"] for row in rows] == [1000, 1001, 1002, 1003, 1004]


def test_control_batches_and_aborted_transactions_never_surface() -> None:
    log = Log()
    sent = Kind(producer_id=7, transactional=True)
    marker = Kind(producer_id=7, transactional=True, control=True)
    log.add(RECORDS, sent)  # 0 to 4
    log.add(RECORDS, Kind(producer_id=8, transactional=True))  # 5 to 9
    log.add([Kept(0, MS, b"\0\0\0\0", b"\0\0\0\0\0\0")], marker)  # 10: aborts 0 to 4
    log.add(RECORDS, sent)  # 11 to 15
    log.add([Kept(0, MS, b"\0\0\0\1", b"\0\0\0\0\0\0")], marker)  # 16: commits
    log.add(RECORDS, Kind(producer_id=7))  # 17 to 21: idempotent, not transactional
    found = decode(
        lambda decoder: decoder.feed_block(log.block(), 0),
        aborted=[AbortedRange(7, 0, 10), AbortedRange(7, 17, 30)],
    )
    assert [row["offset"] for row in rows_of(found)] == [*range(5, 10), *range(11, 16), *range(17, 22)]


def test_snappy_is_read_with_and_without_the_java_clients_framing() -> None:
    framed = stored_batch(RECORDS, Kind(codec=Codec.SNAPPY))
    plain = stored_batch(RECORDS)
    raw = bytearray(framed[:HEADER_BYTES]) + bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    expected = rows_of(decode(lambda decoder: decoder.feed(plain, 0)))
    assert rows_of(decode(lambda decoder: decoder.feed(framed, 0))) == expected
    assert rows_of(decode(lambda decoder: decoder.feed(with_checksum(raw), 0))) == expected


def test_a_header_key_that_is_no_text_reads_as_javas_clients_read_it() -> None:
    records = [
        Kept(0, MS, None, b"v", (("A?B", b"1"), ("é", b"2"))),
        Kept(1, MS, None, b"w", (("ok", None),)),
    ]
    batch = stored_batch(records, patch=lambda body: body.replace(b"A?B", b"A\xffB"))
    first, second = rows_of(decode(lambda decoder: decoder.feed(batch, 0)))
    assert [header["key"] for header in first["headers"]] == ["A\ufffdB", "é"]
    assert second["headers"] == [{"key": "ok", "value": None}]


def test_arrow_batches_keep_to_rows_and_bytes_and_a_large_row_stands_alone() -> None:
    values = [bytes(size) for size in (10, 10, 10, 5_000, 10, 90, 10)]
    batch = stored_batch([Kept(n, MS, None, value) for n, value in enumerate(values)])
    found = decode(lambda decoder: decoder.feed(batch, 0), columns=["value"], rows_max=3, bytes_max=100)
    assert [[len(row["value"]) for row in rows_of([part])] for part in found] == [
        [10] * 3,
        [5_000],
        [10, 90],
        [10],
    ]


def test_columns_that_are_not_chosen_do_not_count() -> None:
    batch = stored_batch([Kept(n, MS, b"k", bytes(1_000)) for n in range(50)])
    (found,) = decode(lambda decoder: decoder.feed(batch, 0), columns=["offset", "key"], bytes_max=50)
    assert (found.num_rows, found.schema.names) == (50, ["offset", "key"])


def test_records_outside_the_clip_are_not_read() -> None:
    damaged = bytearray(stored_batch(RECORDS, span=5))
    damaged[-1] ^= 1
    block = data_block([bytes(damaged), stored_batch(RECORDS, span=5), bytes(damaged)], [5, 5, 5], 0)
    found = decode(lambda decoder: decoder.feed_block(block, 0), clip=Clip("t", 3, 5, 9))
    assert [row["offset"] for row in rows_of(found)] == [5, 6, 7, 8]


def test_rows_collect_over_blocks_and_parts_but_never_over_partitions() -> None:
    batch = stored_batch(RECORDS, span=5)

    def feed(decoder: BatchDecoder) -> None:
        decoder.feed_block(data_block([batch], [5], 0), 0)
        decoder.move_to(Clip("t", 3, 7, 100))
        decoder.feed_block(data_block([batch], [5], 5), 0)
        decoder.feed(batch, 20)
        decoder.move_to(Clip("other", 0, 0, 2))
        decoder.feed_block(data_block([batch], [5], 50), -50)

    found = decode(feed)
    assert [
        (part[0]["topic"], [row["offset"] for row in part]) for part in (rows_of([p]) for p in found)
    ] == [
        ("t", [0, 1, 2, 3, 4, 7, 8, 9, 20, 21, 22, 23, 24]),
        ("other", [0, 1]),
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches_that_are_kept_are_not_written_again(kernel: type) -> None:
    """Memory of released Arrow batches is reused; memory of batches and slices still in use is not."""
    decoder = BatchDecoder(EVERYTHING, clip=EVERYWHERE, rows_max=10, kernel=kernel)
    kept, expected = [], []
    for turn in range(30):
        values = [bytes([turn]) * (n * 50) for n in range(10)]
        records = [
            Kept(n, MS, value, None if n == turn % 10 else value, (("h", value),))
            for n, value in enumerate(values)
        ]
        decoder.feed(stored_batch(records), 100 * turn)
        for batch in decoder.finish():
            if turn % 3 == 0:
                kept.append(batch.slice(2, 5) if turn % 2 else batch)
                expected.append(kept[-1].to_pylist())
            del batch
    assert [batch.to_pylist() for batch in kept] == expected


def test_nothing_fed_gives_nothing() -> None:
    assert decode(lambda decoder: decoder.feed_block(b"", 0)) == []
    assert decode(lambda _: None) == []


def test_interrupted_take_resumes() -> None:
    decoder = BatchDecoder(["offset"], clip=EVERYWHERE, rows_max=2)
    decoder.feed(stored_batch(RECORDS), 0)
    assert next(decoder.take()).column(0).to_pylist() == [0, 1]
    assert [batch.column(0).to_pylist() for batch in decoder.finish()] == [[2, 3], [4]]


def test_no_more_is_queued_than_the_bound() -> None:
    decoder = BatchDecoder(["offset"], clip=EVERYWHERE)
    batch = bytes(QUEUED_BYTES_MAX // 2 + 1)
    decoder.feed_block(batch, 0)
    with pytest.raises(AssertionError, match="take"):
        decoder.feed_block(batch, 0)


def test_unrepresentable_timestamp_is_an_error_only_if_requested() -> None:
    batch = stored_batch([Kept(0, 1 << 60, b"k", b"v")])
    with pytest.raises(
        CorruptBatchError,
        match=r"topic t, partition 3, offset 9: record 0 has the timestamp .* without `timestamp`",
    ):
        decode(lambda decoder: decoder.feed(batch, 9))
    assert rows_of(decode(lambda decoder: decoder.feed(batch, 9), columns=["value"])) == [{"value": b"v"}]


def test_no_time_is_so_large_that_a_row_is_lost_silently() -> None:
    batch = stored_batch([Kept(0, (1 << 63) - 1, None, b"v")])
    rows = rows_of(decode(lambda decoder: decoder.feed(batch, 0), columns=["value"]))
    assert rows == [{"value": b"v"}]
    assert decode(methodcaller("feed", batch, 0), columns=["value"], time_range_ms=(0, 1 << 70))
    assert not decode(methodcaller("feed", batch, 0), columns=["value"], time_range_ms=(5, 5))


def test_batches_of_the_brokers_builder_are_decoded() -> None:
    """Batches of a different writer than this test's own."""
    records = [NewRecord(MS, b"k", b"v", [("h", b"x")]), NewRecord(MS + 1, None, None)]
    for codec in Codec:
        batch = bytes(build_batch(records, codec=codec))
        rows = rows_of(decode(methodcaller("feed", batch, 0)))
        assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"v"), (None, None)]
