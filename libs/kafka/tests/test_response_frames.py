"""Response frames: the same bytes for any split into buffers, and few buffers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.api import ApiKey
from ponor_kafka.headers import BUFFERS_MAX, JOINED_BYTES_MAX, encode_response_frame

buffers = st.lists(
    st.integers(0, 2 * JOINED_BYTES_MAX).map(bytes) | st.binary(max_size=8), max_size=3 * BUFFERS_MAX
)


@given(body=buffers)
def test_joining_buffers_changes_no_byte(body: list[bytes]) -> None:
    frame = b"".join(encode_response_frame(ApiKey.METADATA, 12, 7, body))
    assert frame == b"".join(encode_response_frame(ApiKey.METADATA, 12, 7, [b"".join(body)]))


def test_page_of_many_rows_is_one_buffer() -> None:
    body = [b"row"] * 12_000
    assert len(encode_response_frame(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 7, body)) == 2


def test_records_are_not_copied() -> None:
    records = [bytes(JOINED_BYTES_MAX + 1) for _ in range(BUFFERS_MAX)]
    body = [part for batch in records for part in (b"head", b"more", batch)]
    frame = encode_response_frame(ApiKey.FETCH, 12, 7, body)
    assert [part for part in frame if len(part) > JOINED_BYTES_MAX] == records
    assert all(any(part is batch for part in frame) for batch in records)
    assert len(frame) == 1 + 2 * len(records)
