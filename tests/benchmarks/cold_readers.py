"""Readers of old data at a given speed, in a process of their own: what `isolation` lets loose beside producers."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Final, cast

from ponor_kafka.codec import decode_as
from ponor_kafka.headers import decode_response_header
from ponor_kafka.messages.fetch import FetchResponse
from ponor_kafka.record_batch import split_batches

from tests.benchmarks.frames import FETCH_VERSION, fetch_frame
from tests.benchmarks.raw_client import connect

FETCH_BYTES: Final = 1 << 20
LENGTH_BYTES: Final = 4


@dataclass(slots=True)
class _Reader:
    """One consumer from offset 0 on, and again from 0 at the end."""

    partition: int
    offset: int = 0


@contextmanager
def cold_readers(
    bootstrap: str, topic: str, partitions: int, *, bytes_per_s: float, core: int
) -> Iterator[Synchronized[int]]:
    """One reader per partition, all together at `bytes_per_s`. Yields the count of bytes read so far."""
    context = multiprocessing.get_context("spawn")
    total: Synchronized[int] = context.Value("q", 0)
    process = context.Process(
        target=_read, args=(bootstrap, topic, partitions, bytes_per_s, core, total), daemon=True
    )
    process.start()
    try:
        yield total
    finally:
        process.terminate()
        process.join()


def _read(
    bootstrap: str, topic: str, partitions: int, bytes_per_s: float, core: int, total: Synchronized[int]
) -> None:
    os.sched_setaffinity(0, {core} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
    selector = selectors.DefaultSelector()
    for partition in range(partitions):
        connection = connect(bootstrap)
        reader = _Reader(partition)
        selector.register(connection, selectors.EVENT_READ, (connection, reader, bytearray()))
        connection.sendall(fetch_frame(topic, partition, 0, FETCH_BYTES, f"cold-{partition}"))
    began = time.monotonic()
    while True:
        for key, _ in selector.select():
            connection, reader, received = key.data
            received += connection.recv(FETCH_BYTES)
            if len(received) < LENGTH_BYTES or len(received) - LENGTH_BYTES < int.from_bytes(
                received[:LENGTH_BYTES], "big"
            ):
                continue
            total.value += _advance(reader, bytes(received[LENGTH_BYTES:]))
            received.clear()
            ahead_s = total.value / bytes_per_s - (time.monotonic() - began)
            if ahead_s > 0:
                time.sleep(ahead_s)
            connection.sendall(
                fetch_frame(topic, reader.partition, reader.offset, FETCH_BYTES, f"cold-{reader.partition}")
            )


def _advance(reader: _Reader, answer: bytes) -> int:
    """Move the reader behind what came; returns its bytes."""
    _, position = decode_response_header(1, FETCH_VERSION, answer)
    response, _ = decode_as(FetchResponse, FETCH_VERSION, answer, position)
    partition = response.responses[0].partitions[0]
    assert partition.error_code in {0, 7, 56}, f"a cold fetch is answered with error {partition.error_code}"
    records = bytearray(cast("bytes", partition.records or b""))
    for batch in split_batches(memoryview(records)):
        reader.offset = batch.next_offset
    if reader.offset >= partition.high_watermark:
        reader.offset = 0
    return len(records)
