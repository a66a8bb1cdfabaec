"""Upload hooks over several turns of the event loop: few run in one turn, and their records are in
the block of the data they describe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from s3stream import sealing
from s3stream.settings import KIB, MIB
from s3stream.stream import Stream

from libs.s3stream.tests.storage_node import StorageNode, append_all, small_settings


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[StorageNode]:
    node = await StorageNode.create(tmp_path, small_settings(log_cache_bytes_max=16 * MIB))
    await node.start()
    yield node
    await node.close()
    assert node.failures == []


class TurnCounter:
    """Return the most calls of `note` between two turns of the event loop."""

    def __init__(self) -> None:
        self.most = self.calls = 0
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._turn()

    def _turn(self) -> None:
        self.most, self.calls = max(self.most, self.calls), 0
        if not self._stopped:
            self._loop.call_soon(self._turn)

    def note(self) -> None:
        self.calls += 1

    def stop(self) -> None:
        self._stopped = True


def commits_with(node: StorageNode, stream: Stream) -> list[int]:
    """Return the commits that contain a part of a stream."""
    return [
        number
        for number, commit in enumerate(node.cluster.commits)
        for uploaded in [commit.stream_set_object, *commit.stream_objects]
        if uploaded is not None and any(part.stream_id == stream.stream_id for part in uploaded.ranges)
    ]


async def test_hooks_of_many_streams_run_over_several_turns_for_one_block(node: StorageNode) -> None:
    streams = await node.open_new(1_000)
    data, meta = streams[:500], streams[500:]
    turns = TurnCounter()

    def describe(about: Stream, to: Stream) -> bool:
        turns.note()
        to.append(about.confirmed_offset.to_bytes(8, "big"), count=1, max_timestamp=-1)
        return False

    for one, other in zip(data, meta, strict=True):
        node.client.on_upload(one.stream_id, partial(describe, one, other))
    await asyncio.gather(*(stream.append(b"data", count=1, max_timestamp=-1) for stream in data))
    await node.client.force_upload()
    turns.stop()
    assert turns.most <= sealing.HOOKS_PER_TURN
    assert {number for stream in streams for number in commits_with(node, stream)} == {0}
    assert all(stream.committed_offset == stream.next_offset for stream in streams)


async def test_a_long_hook_is_called_again_before_the_same_seal(node: StorageNode) -> None:
    data, meta = await node.open_new(2)
    turns, calls = TurnCounter(), 0

    def describe() -> bool:
        nonlocal calls
        turns.note()
        calls += 1
        if calls < 20:
            return True
        meta.append(b"state", count=1, max_timestamp=-1)
        return False

    node.client.on_upload(data.stream_id, describe)
    await append_all(data, [b"data"])
    await node.client.force_upload()
    turns.stop()
    assert calls == 20
    assert turns.most <= sealing.HOOK_STEPS_PER_TURN
    assert commits_with(node, data) == commits_with(node, meta) == [0]


async def test_data_between_the_turns_is_described_in_the_same_block(node: StorageNode) -> None:
    streams = await node.open_new(401)
    data, meta = streams[:-1], streams[-1]
    late = data[0]
    covered: list[int] = []

    def describe(stream: Stream) -> bool:
        if stream is late:
            covered.append(stream.next_offset)
            meta.append(b"state", count=1, max_timestamp=-1)
        elif stream is data[200]:
            # Within a hook it would count as the hook's own append, so another turn of the event
            # loop appends it.
            asyncio.get_running_loop().call_soon(partial(late.append, b"late", count=1, max_timestamp=-1))
        return False

    for stream in data:
        node.client.on_upload(stream.stream_id, partial(describe, stream))
    await asyncio.gather(*(stream.append(b"data", count=1, max_timestamp=-1) for stream in data))
    await node.client.force_upload()
    assert covered == [1, 2]
    assert late.committed_offset == 2
    assert set(commits_with(node, late)) == set(commits_with(node, meta)) == {0}


async def test_hooks_that_append_many_bytes_share_a_turn_with_few(node: StorageNode) -> None:
    streams = await node.open_new(40)
    data, meta = streams[:20], streams[20:]
    turns = TurnCounter()

    def describe(to: Stream) -> bool:
        turns.note()
        to.append(bytes(100 * KIB), count=1, max_timestamp=-1)
        return False

    for one, other in zip(data, meta, strict=True):
        node.client.on_upload(one.stream_id, partial(describe, other))
    await asyncio.gather(*(stream.append(b"data", count=1, max_timestamp=-1) for stream in data))
    await node.client.force_upload()
    turns.stop()
    assert turns.most * 100 * KIB <= sealing.HOOK_BYTES_PER_TURN + 100 * KIB
