"""Readers of old data at a fixed rate, in a separate process, for `isolation`.

They share a core with the generator whose latencies are measured, so they run under SCHED_IDLE, and
each sends its fetches at an even rate, with at most one fetch of delay to make up. This isolates
the effect on the broker.
"""

from __future__ import annotations

import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from typing import Final, cast

from ponor_kafka.codec import decode_as
from ponor_kafka.headers import decode_response_header
from ponor_kafka.messages.fetch import FetchResponse
from ponor_kafka.record_batch import split_batches

from tests.benchmarks.frames import FETCH_VERSION, fetch_frame
from tests.benchmarks.raw_client import connect

FETCH_BYTES: Final = 1 << 20
RECEIVE_BYTES: Final = 2 * FETCH_BYTES
LENGTH_BYTES: Final = 4


@dataclass(slots=True)
class _Reader:
    """One consumer from offset 0 to the end, repeatedly."""

    connection: socket.socket
    partition: int
    due_s: float
    """When its next fetch is due."""
    offset: int = 0
    is_waiting: bool = False
    received_bytes: int = 0
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(RECEIVE_BYTES)))


@contextmanager
def cold_readers(
    bootstrap: str, topic: str, partitions: int, *, bytes_per_s: float, core: int
) -> Iterator[Synchronized[int]]:
    """Run one reader per partition, together at `bytes_per_s`. Yields the counter of bytes read."""
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
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    selector = selectors.DefaultSelector()
    began_s = time.monotonic()
    readers = [
        _Reader(connect(bootstrap), partition, began_s + partition * FETCH_BYTES / bytes_per_s)
        for partition in range(partitions)
    ]
    for reader in readers:
        selector.register(reader.connection, selectors.EVENT_READ, reader)
    while True:
        now_s = time.monotonic()
        for reader in readers:
            if not reader.is_waiting and reader.due_s <= now_s:
                _ask(reader, topic)
        next_due_s = min((reader.due_s for reader in readers if not reader.is_waiting), default=now_s + 1)
        for key, _ in selector.select(max(next_due_s - now_s, 0)):
            answer_bytes = _receive(key.data)
            if answer_bytes:
                with total.get_lock():
                    total.value += answer_bytes
                interval_s = answer_bytes * partitions / bytes_per_s
                key.data.due_s = max(key.data.due_s, time.monotonic() - interval_s) + interval_s


def _ask(reader: _Reader, topic: str) -> None:
    name = f"cold-{reader.partition}"
    reader.connection.sendall(fetch_frame(topic, reader.partition, reader.offset, FETCH_BYTES, name))
    reader.is_waiting = True
    reader.received_bytes = 0


def _receive(reader: _Reader) -> int:
    """Receive data; return the bytes of records when a response is complete, else 0."""
    size_bytes = reader.connection.recv_into(reader.buffer[reader.received_bytes :])
    assert size_bytes, "the subject closed a connection"
    reader.received_bytes += size_bytes
    if reader.received_bytes < LENGTH_BYTES:
        return 0
    end = LENGTH_BYTES + int.from_bytes(reader.buffer[:LENGTH_BYTES], "big")
    if reader.received_bytes < end:
        return 0
    reader.is_waiting = False
    return _advance(reader, bytes(reader.buffer[LENGTH_BYTES:end]))


def _advance(reader: _Reader, answer: bytes) -> int:
    """Move the reader behind a response; return its bytes."""
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
