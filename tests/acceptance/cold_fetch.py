"""Fetches one partition megabyte by megabyte over a plain socket, to measure the broker and not a
client library.
"""

from __future__ import annotations

import socket
import time
from typing import Final, cast

from ponor_kafka.codec import decode_as
from ponor_kafka.headers import decode_response_header
from ponor_kafka.messages.fetch import FetchResponse
from ponor_kafka.record_batch import split_batches

from tests.benchmarks.frames import FETCH_VERSION, fetch_frame
from tests.benchmarks.raw_client import connect

FETCH_BYTES: Final = 1 << 20
LENGTH_BYTES: Final = 4


def fetch_all(bootstrap: str, topic: str, partition: int) -> tuple[int, float]:
    """Return the bytes of batches from the first offset to the high watermark, and the seconds of
    all fetches.
    """
    total = offset = 0
    began = time.monotonic()
    with connect(bootstrap) as connection:
        connection.settimeout(60)
        while True:
            connection.sendall(fetch_frame(topic, partition, offset, FETCH_BYTES, "cold"))
            records, high_watermark = _answer(connection)
            total += len(records)
            for batch in split_batches(memoryview(records)):
                offset = batch.next_offset
            if offset >= high_watermark:
                return total, time.monotonic() - began
            assert records, f"no data at offset {offset}"


def _answer(connection: socket.socket) -> tuple[bytearray, int]:
    """Records and high watermark of one response."""
    answer = _received(connection, int.from_bytes(_received(connection, LENGTH_BYTES), "big"))
    _, position = decode_response_header(1, FETCH_VERSION, answer)
    response, _ = decode_as(FetchResponse, FETCH_VERSION, answer, position)
    found = response.responses[0].partitions[0]
    assert found.error_code == 0, f"a cold fetch returned error {found.error_code}"
    return bytearray(cast("bytes", found.records or b"")), found.high_watermark


def _received(connection: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        piece = connection.recv(size_bytes - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return bytes(data)
