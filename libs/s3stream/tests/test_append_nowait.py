"""Appends with callbacks: time and order of the callbacks, and what a callback may do."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ponor_runtime.disk import Buffer
from s3stream.errors import AppendBackpressureError, StorageFailedError, StreamClosedError
from s3stream.settings import KIB, MIB
from s3stream.stream import Stream

from libs.s3stream.tests.storage_node import StorageNode, payloads_of, read_all, small_settings


class Told:
    """Records the results that callbacks received, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[int, BaseException | None]] = []
        self.changed = asyncio.Event()

    def append(self, stream: Stream, payload: bytes, number: int) -> None:
        def told(error: BaseException | None) -> None:
            if error is None:
                assert stream.confirmed_offset > number, "readable before the callback"
            self.all.append((number, error))
            self.changed.set()

        stream.append_nowait(payload, count=1, max_timestamp=-1, on_durable=told)

    async def until(self, count: int) -> None:
        while len(self.all) < count:
            self.changed.clear()
            await self.changed.wait()


async def started(path: Path, **changes: int) -> tuple[StorageNode, Stream]:
    node = await StorageNode.create(path, small_settings(**changes))
    await node.start()
    (stream,) = await node.open_new(1)
    return node, stream


async def test_callbacks_run_in_order_when_records_are_durable_and_cached(tmp_path: Path) -> None:
    node, stream = await started(tmp_path)
    told = Told()
    for number in range(500):
        told.append(stream, b"%d" % number, number)
        assert len(told.all) <= number, "never from within the append"
        if number % 7 == 0:
            await asyncio.sleep(0)
    await told.until(500)
    assert told.all == [(number, None) for number in range(500)]
    assert payloads_of(await read_all(stream)) == [b"%d" % number for number in range(500)]
    await node.close()
    assert node.failures == []


async def test_a_callback_may_append(tmp_path: Path) -> None:
    node, stream = await started(tmp_path)
    order: list[int] = []
    done = asyncio.Event()

    def next_one(error: BaseException | None) -> None:
        assert error is None
        order.append(stream.confirmed_offset)
        if len(order) == 20:
            done.set()
        else:
            stream.append_nowait(b"x" * 1000, count=2, max_timestamp=-1, on_durable=next_one)

    stream.append_nowait(b"first", count=2, max_timestamp=-1, on_durable=next_one)
    await done.wait()
    assert order == list(range(2, 42, 2))
    await node.close()


async def test_an_exception_in_one_callback_does_not_affect_the_others(tmp_path: Path) -> None:
    node, stream = await started(tmp_path)
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))

    def wrong(_: BaseException | None) -> None:
        raise ZeroDivisionError

    stream.append_nowait(b"a", count=1, max_timestamp=-1, on_durable=wrong)
    told = Told()
    told.append(stream, b"b", 1)
    await told.until(1)
    assert told.all == [(1, None)]
    assert [type(context["exception"]) for context in raised] == [ZeroDivisionError]
    asyncio.get_running_loop().set_exception_handler(None)
    await node.close()


async def test_a_failed_log_fails_every_callback_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, stream = await started(tmp_path, wal_queue_bytes_max=1 * MIB)
    waiting = Told()

    def fail(descriptor: int, buffers: Sequence[Buffer], *_: object) -> int:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr("os.pwritev", fail)
    with pytest.raises(AppendBackpressureError):
        # More than the log's queue takes in one turn: the rest waits for room, and then the log fails.
        for number in range(1_000_000):
            waiting.append(stream, bytes(64 * KIB), number)
    taken = stream.next_offset
    assert taken > 16

    await waiting.until(taken)
    monkeypatch.undo()
    assert [number for number, _ in waiting.all] == list(range(taken))
    assert {type(error) for _, error in waiting.all} == {StorageFailedError}
    assert stream.confirmed_offset == 0
    with pytest.raises(StorageFailedError):
        stream.append_nowait(b"x", count=1, max_timestamp=-1, on_durable=lambda _: None)
    await node.crash()


async def test_a_closed_stream_refuses_appends(tmp_path: Path) -> None:
    node, stream = await started(tmp_path)
    await stream.close()
    with pytest.raises(StreamClosedError):
        stream.append_nowait(b"x", count=1, max_timestamp=-1, on_durable=lambda _: None)
    await node.close()
