"""The object format: round trips, detection of damage, and agreement with docs/formats/object.md."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import decode_block
from s3stream.objects.format import ENTRY_BYTES, FOOTER_BYTES, MAGIC, BlockEntry, Footer
from s3stream.objects.index import ObjectIndex, decode_footer, decode_index
from s3stream.objects.keys import object_key, parse_object_key
from s3stream.objects.writer import EncodedObject, ObjectWriter
from s3stream.ports import StreamRange
from s3stream.records import RECORD_HEADER, TIMESTAMP_MIN, StreamRecord, decode_records

OBJECT_ID = ObjectId((1 << 49) | 5)
KEY = object_key("ponor-a", OBJECT_ID)
DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "object.md"


def record(stream: int, epoch: int, offset: int, count: int, timestamp: int, payload: bytes) -> StreamRecord:
    return StreamRecord(StreamId(stream), StreamEpoch(epoch), offset, count, timestamp, payload)


def example() -> list[StreamRecord]:
    return [
        record(7, 3, 100, 2, 1_700_000_000_000, b"ab"),
        record(7, 3, 102, 1, 1_700_000_000_500, b"cde"),
        record(9, 0, 0, 4, -1, b""),
    ]


def written(records: list[StreamRecord], block_bytes_max: int = 512 * 1024) -> EncodedObject:
    writer = ObjectWriter(OBJECT_ID, block_bytes_max=block_bytes_max)
    for each in records:
        writer.add(each)
    return writer.finish()


def opened(data: bytes) -> ObjectIndex:
    footer = decode_footer(KEY, OBJECT_ID, data, len(data))
    return decode_index(KEY, footer, data[footer.index_position : footer.index_position + footer.index_bytes])


def all_records(data: bytes) -> list[StreamRecord]:
    found: list[StreamRecord] = []
    for entry in opened(data):
        block = decode_block(KEY, entry, data[entry.position : entry.position + entry.size_bytes])
        found.extend(block.records_from(entry.start_offset))
    return found


def with_footer(data: bytes, **changes: int) -> bytes:
    """Return the object with a modified footer and a correct CRC."""
    footer = decode_footer(KEY, OBJECT_ID, data, len(data))._replace(**changes)  # type: ignore[arg-type]
    return data[:-FOOTER_BYTES] + footer.encode()


@st.composite
def streams_of_records(draw: st.DrawFn) -> list[StreamRecord]:
    records: list[StreamRecord] = []
    for stream in sorted(draw(st.sets(st.integers(0, 1 << 62), min_size=1, max_size=4))):
        epoch = draw(st.integers(0, 1 << 40))
        offset = draw(st.integers(0, 1 << 61))
        for _ in range(draw(st.integers(1, 8))):
            epoch += draw(st.sampled_from([0, 0, 0, 1]))
            offset += draw(st.sampled_from([0, 0, 0, 5]))
            count = draw(st.sampled_from([1, 2, 7, (1 << 31) - 1]))
            payload = draw(st.binary(max_size=300))
            records.append(record(stream, epoch, offset, count, draw(st.integers(-1, 1 << 50)), payload))
            offset += count
    return records


class TestRoundTrip:
    @given(streams_of_records(), st.integers(1, 1000))
    def test_records_survive_a_round_trip_for_any_block_size(
        self, records: list[StreamRecord], block_bytes_max: int
    ) -> None:
        encoded = written(records, block_bytes_max)
        data = b"".join(encoded.buffers)
        assert encoded.size_bytes == len(data)
        assert all_records(data) == records

    @given(streams_of_records(), st.integers(1, 1000))
    def test_blocks_have_one_stream_one_epoch_and_a_bounded_size(
        self, records: list[StreamRecord], block_bytes_max: int
    ) -> None:
        data = b"".join(written(records, block_bytes_max).buffers)
        for entry in opened(data):
            block = decode_block(KEY, entry, data[entry.position : entry.position + entry.size_bytes])
            held = list(block.records_from(entry.start_offset))
            assert {(each.stream_id, each.epoch) for each in held} == {(entry.stream_id, entry.epoch)}
            assert entry.size_bytes <= block_bytes_max or len(held) == 1
            assert entry.max_timestamp_ms == max(each.max_timestamp for each in held)

    @given(streams_of_records(), st.integers(1, 500), st.data())
    def test_any_range_finds_exactly_its_records(
        self, records: list[StreamRecord], block_bytes_max: int, data: st.DataObject
    ) -> None:
        encoded = b"".join(written(records, block_bytes_max).buffers)
        stream = data.draw(st.sampled_from(sorted({each.stream_id for each in records})))
        mine = [each for each in records if each.stream_id == stream]
        start = data.draw(st.integers(max(0, mine[0].base_offset - 3), mine[-1].end_offset + 3))
        end = data.draw(st.integers(start, mine[-1].end_offset + 5))
        found: list[StreamRecord] = []
        for entry in opened(encoded).blocks_of(stream, start, end):
            block = decode_block(KEY, entry, encoded[entry.position : entry.position + entry.size_bytes])
            found.extend(
                each
                for each in block.records_from(start)
                if each.end_offset > start and each.base_offset < end
            )
        assert found == [each for each in mine if each.end_offset > start and each.base_offset < end]

    @given(streams_of_records(), st.integers(1, 1000))
    def test_ranges_describe_the_content_of_the_object(
        self, records: list[StreamRecord], block_bytes_max: int
    ) -> None:
        expected: list[StreamRange] = []
        for each in records:
            last = expected[-1] if expected else None
            start = each.base_offset
            if last is not None and (last.stream_id, last.epoch, last.end_offset) == (
                each.stream_id,
                each.epoch,
                start,
            ):
                start = expected.pop().start_offset
            expected.append(StreamRange(each.stream_id, each.epoch, start, each.end_offset))
        assert written(records, block_bytes_max).ranges == expected


class TestWriter:
    def test_payloads_are_not_copied(self) -> None:
        payload = bytearray(b"x" * 1000)
        view = memoryview(payload)[10:500]
        encoded = written([StreamRecord(StreamId(1), StreamEpoch(0), 0, 1, -1, view)])
        assert any(buffer is view for buffer in encoded.buffers)

    def test_a_block_is_closed_before_it_exceeds_the_limit(self) -> None:
        records = [record(1, 0, offset, 1, -1, b"x" * 60) for offset in range(5)]
        index = opened(b"".join(written(records, 200).buffers))
        assert [entry.size_bytes for entry in index] == [200, 200, 100]

    def test_a_large_record_gets_its_own_block(self) -> None:
        records = [
            record(1, 0, 0, 1, -1, b"a"),
            record(1, 0, 1, 1, -1, b"x" * 999),
            record(1, 0, 2, 1, -1, b"b"),
        ]
        index = opened(b"".join(written(records, 200).buffers))
        assert [(entry.start_offset, entry.end_offset) for entry in index] == [(0, 1), (1, 2), (2, 3)]

    @pytest.mark.parametrize(
        ("second", "words"),
        [
            (record(6, 3, 0, 1, -1, b""), "stream 6 follows stream 7"),
            (record(7, 3, 101, 1, -1, b""), "ends at 102"),
            (record(7, 2, 102, 1, -1, b""), "at epoch 2"),
        ],
        ids=["stream goes back", "offsets overlap", "epoch goes back"],
    )
    def test_records_out_of_order_are_refused(self, second: StreamRecord, words: str) -> None:
        writer = ObjectWriter(OBJECT_ID)
        writer.add(example()[0])
        with pytest.raises(ValueError, match=words):
            writer.add(second)

    def test_an_object_without_records_is_refused(self) -> None:
        with pytest.raises(ValueError, match="has no records"):
            ObjectWriter(OBJECT_ID).finish()


class TestDamage:
    def test_every_flipped_bit_is_detected_and_located(self) -> None:
        data = b"".join(written(example()).buffers)
        for position in range(len(data)):
            for bit in range(8):
                broken = bytearray(data)
                broken[position] ^= 1 << bit
                with pytest.raises(ObjectCorruptError, match=rf"^{KEY}, position \d+: "):
                    all_records(bytes(broken))

    def test_every_truncation_is_detected(self) -> None:
        data = b"".join(written(example()).buffers)
        for length in range(len(data)):
            with pytest.raises(ObjectCorruptError):
                all_records(data[:length])

    @settings(max_examples=200)
    @given(st.binary(max_size=400))
    def test_arbitrary_bytes_raise_the_documented_error(self, data: bytes) -> None:
        with pytest.raises(ObjectCorruptError):
            all_records(data)

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"object_id": 6}, "footer object id"),
            ({"version": 2}, "footer version: 2"),
            ({"flags": 1}, "footer version: 1 with flags 1"),
            ({"entry_count": 3}, "footer entry count"),
            ({"entry_count": 0, "index_bytes": 0}, "footer entry count"),
            ({"index_position": 126}, "footer index position"),
            ({"index_crc": 0}, "index CRC32C"),
        ],
    )
    def test_a_false_footer_with_a_right_checksum_is_refused(
        self, changes: dict[str, int], rule: str
    ) -> None:
        data = b"".join(written(example()).buffers)
        with pytest.raises(ObjectCorruptError, match=rule):
            all_records(with_footer(data, **changes))

    @pytest.mark.parametrize(
        ("number", "changes", "rule"),
        [
            (0, {"stream_id": -1}, "identity"),
            (0, {"start_offset": 103}, "offsets"),
            (1, {"position": 84}, "position: 84"),
            (0, {"record_count": 0}, "record count"),
            (0, {"record_count": 3}, "size"),
            (1, {"stream_id": 6}, "order: stream 6 after stream 7"),
            (1, {"stream_id": 7, "start_offset": 102, "end_offset": 106}, "order: stream 7"),
            (1, {"size_bytes": 41}, "blocks end here"),
            (0, {"end_offset": 104}, "block summary"),
            (0, {"max_timestamp_ms": 1}, "block summary"),
            (0, {"epoch": 2}, "block record"),
        ],
    )
    def test_a_false_index_with_right_checksums_is_refused(
        self, number: int, changes: dict[str, int], rule: str
    ) -> None:
        data = b"".join(written(example()).buffers)
        entries = list(opened(data))
        entries[number] = entries[number]._replace(**changes)  # type: ignore[arg-type]
        index = b"".join(entry.encode() for entry in entries)
        lying = with_footer(
            data[: -FOOTER_BYTES - len(index)] + index + data[-FOOTER_BYTES:], index_crc=crc32c(index)
        )
        with pytest.raises(ObjectCorruptError, match=rule):
            all_records(lying)


class TestRecordsInABlock:
    """Blocks with a right checksum and wrong records, as only a faulty writer produces."""

    @pytest.mark.parametrize(
        "records",
        [
            [record(7, 3, 100, 2, -1, b""), record(7, 3, 103, 1, -1, b"")],
            [record(7, 3, 100, 2, -1, b""), record(8, 3, 102, 1, -1, b"")],
            [record(7, 3, 100, 2, -1, b""), record(7, 4, 102, 1, -1, b"")],
            [record(7, 3, 100, 2, -1, b""), record(7, 3, 102, 0, -1, b"")],
            [record(7, 3, 100, 2, -1, b""), record(7, 3, 102, 1 << 31, -1, b"")],
        ],
        ids=["hole", "other stream", "other epoch", "count 0", "count too large"],
    )
    def test_a_record_out_of_place_is_named(self, records: list[StreamRecord]) -> None:
        data = b"".join(each.encode_header() + bytes(each.payload) for each in records)
        self.refused(data, r"position 1040: block record")

    @pytest.mark.parametrize("cut", [1, 39, 41])
    def test_a_record_cut_short_is_named(self, cut: int) -> None:
        first, second = record(7, 3, 100, 2, -1, b""), record(7, 3, 102, 1, -1, b"abc")
        data = first.encode_header() + second.encode_header() + b"abc"
        self.refused(data[: 40 + cut], r"position 1040: block record")

    def refused(self, data: bytes, rule: str) -> None:
        entry = BlockEntry(StreamId(7), StreamEpoch(3), 100, 103, -1, 1000, len(data), 2, crc32c(data))
        with pytest.raises(ObjectCorruptError, match=rf"{KEY}, {rule}"):
            decode_block(KEY, entry, data)


class TestRecords:
    @pytest.mark.parametrize(
        ("fields", "rule"),
        [
            ((-1, 0, 0, 0, 1, 0), "stream id"),
            ((0, -1, 0, 0, 1, 0), "stream epoch"),
            ((0, 0, -1, 0, 1, 0), "base offset"),
            ((0, 0, 0, 0, 0, 0), "count"),
            ((0, 0, 0, 0, 1 << 31, 0), "count"),
            ((0, 0, (1 << 63) - 1, 0, 1, 0), "end offset"),
            ((0, 0, 0, 0, 1, 1), "payload length"),
        ],
    )
    def test_a_broken_header_is_named(self, fields: tuple[int, ...], rule: str) -> None:
        with pytest.raises(ObjectCorruptError, match=rf"segment 4, position 1000: record {rule}"):
            list(decode_records(RECORD_HEADER.pack(*fields), source="segment 4", position=1000))

    def test_a_header_cut_short_is_named(self) -> None:
        data = b"".join([example()[0].encode_header(), b"ab", b"\0" * 39])
        records = decode_records(data, source="segment 4", position=1000)
        assert next(records) == example()[0]
        with pytest.raises(
            ObjectCorruptError, match="segment 4, position 1042: record header: 39 bytes remain"
        ):
            next(records)


class TestKeys:
    @given(st.integers(0, (1 << 63) - 1), st.from_regex(r"\A[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,62}\Z"))
    def test_a_key_contains_namespace_and_id(self, object_id: int, namespace: str) -> None:
        assert parse_object_key(object_key(namespace, ObjectId(object_id))) == (namespace, object_id)

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "84/ponor-a",
            "84/ponor-a/",
            f"84/ponor-a/0{OBJECT_ID}",
            f"85/ponor-a/{OBJECT_ID}",
            f"84/../{OBJECT_ID}",
            f"84/ponor-a/{1 << 63}",
            f"84/ponor-a/{OBJECT_ID}/x",
            "84/ponor-a/-1",
            f"84/ponor-a/{OBJECT_ID}\n",
        ],
    )
    def test_other_keys_are_refused(self, key: str) -> None:
        with pytest.raises(ValueError, match="object key"):
            parse_object_key(key)

    @pytest.mark.parametrize("namespace", ["", ".", "..", ".a", "a/b", "x" * 64, "ä"])
    def test_bad_namespaces_are_refused(self, namespace: str) -> None:
        with pytest.raises(ValueError, match="namespace"):
            object_key(namespace, OBJECT_ID)

    def test_consecutive_ids_spread_over_the_key_space(self) -> None:
        prefixes = {object_key("n", ObjectId(object_id))[:2] for object_id in range(2000)}
        assert len(prefixes) == 256


class TestDocument:
    def test_the_worked_example_matches_the_writer(self) -> None:
        block = re.search(r"```hex\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
        assert block is not None
        documented = bytes.fromhex("".join(line[4:] for line in block[1].splitlines()))
        assert documented == b"".join(written(example()).buffers)
        assert KEY in DOCUMENT.read_text(encoding="utf-8")
        assert [entry.min_timestamp_ms for entry in opened(documented)] == [TIMESTAMP_MIN] * 2

    def test_the_worked_example_with_smallest_timestamps_matches_the_writer(self) -> None:
        _, ends = re.findall(r"```hex\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
        oldest = (1_700_000_000_000, 1_699_999_999_000, -1)
        known = [replace(one, min_timestamp=each) for one, each in zip(example(), oldest, strict=True)]
        data = b"".join(written(known).buffers)
        assert bytes.fromhex("".join(line[4:] for line in ends.splitlines())) == data[0x70:]
        assert [entry.min_timestamp_ms for entry in opened(data)] == [1_699_999_999_000, -1]
        assert all_records(data) == example()

    def test_the_documented_reader_works(self) -> None:
        code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
        assert code is not None
        names: dict[str, object] = {}
        exec(compile(code[1], str(DOCUMENT), "exec"), names)
        read = names["records"](b"".join(written(example()).buffers))  # type: ignore[operator]
        assert list(read) == [(7, 100, 2, b"ab"), (7, 102, 1, b"cde"), (9, 0, 4, b"")]

    def test_the_documented_constants_match_the_code(self) -> None:
        assert (RECORD_HEADER.size, ENTRY_BYTES, FOOTER_BYTES) == (40, 64, 48)
        assert crc32c(b"123456789") == 0xE3069283
        encoded = Footer(OBJECT_ID, 1, 2, 3, 4).encode()
        assert encoded.endswith(struct.pack(">I", crc32c(encoded[:36])) + MAGIC)
