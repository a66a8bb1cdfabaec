"""Uploads of more streams than one set object holds: several objects with one commit each, and
crashes between the commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from ponor_runtime.identity import NodeId
from s3stream import object_upload
from s3stream.errors import StorageFailedError
from s3stream.stream import Stream

from libs.s3stream.tests.cluster_model import ClusterModel, CommitRow
from libs.s3stream.tests.diskless_cluster import DisklessCluster
from libs.s3stream.tests.storage_node import StorageNode, append_all, payloads_of, read_all, small_settings

STREAMS, STREAMS_MAX, OBJECTS = 100, 30, 4
RECORDS = [b"one", b"two", b"three"]


class CrashError(Exception):
    """The process crashes here."""


@pytest.fixture
async def cluster() -> AsyncIterator[DisklessCluster]:
    cluster = DisklessCluster()
    yield cluster
    for broker in cluster.brokers:
        await broker.stop()


def widths(commits: list[CommitRow]) -> list[int]:
    return [len(commit.stream_set_object.ranges) for commit in commits if commit.stream_set_object]


def dies_at(step: str, occurrence: int) -> Callable[[str], None]:
    seen = 0

    def die(name: str) -> None:
        nonlocal seen
        seen += name == step
        if name == step and seen == occurrence:
            raise CrashError(f"{step} for the {occurrence}. time")

    return die


def assert_each_range_is_in_one_object(cluster: ClusterModel) -> None:
    for row in cluster.streams.values():
        ends = [0, *[piece.end_offset for piece in row.pieces]]
        assert [piece.start_offset for piece in row.pieces] == ends[:-1]
        assert ends[-1] == row.end_offset == len(RECORDS)


async def wide_node(path: Path) -> tuple[StorageNode, list[Stream]]:
    """Create a node with acknowledged records of many streams that were not uploaded."""
    node = await StorageNode.create(path, small_settings(set_object_streams_max=STREAMS_MAX))
    await node.start()
    streams = await node.open_new(STREAMS)
    await asyncio.gather(*[append_all(stream, RECORDS) for stream in streams])
    return node, streams


async def test_ids_of_many_objects_are_prepared_in_several_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_upload, "PREPARED_IDS_MAX", OBJECTS - 1)
    node, streams = await wide_node(tmp_path)
    steps: list[str] = []
    node.cluster.on_step = steps.append
    await node.client.force_upload()
    assert steps.count("prepare:after") == 2
    assert len({commit.stream_set_object.object_id for commit in node.cluster.commits}) == OBJECTS  # type: ignore[union-attr]
    assert all(stream.committed_offset == len(RECORDS) for stream in streams)
    await node.close()


async def test_the_log_is_trimmed_after_the_last_commit_of_a_wide_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, streams = await wide_node(tmp_path)
    seen: list[tuple[int, int]] = []
    trims: list[tuple[int, int]] = []
    trim = node.wal.trim

    def look(step: str) -> None:
        if step == "commit:after":
            seen.append((len(node.cluster.commits), sum(stream.committed_offset for stream in streams)))

    def note_trim(before_sequence: int, *, recorded_sequence: int = 0) -> None:
        trims.append((len(node.cluster.commits), before_sequence))
        trim(before_sequence, recorded_sequence=recorded_sequence)

    monkeypatch.setattr(node.wal, "trim", note_trim)
    node.cluster.on_step = look
    await node.client.force_upload()
    assert seen == [(1, 0), (2, 0), (3, 0), (4, 0)], "a partial upload commits no trim point"
    assert widths(node.cluster.commits) == [25, 25, 25, 25]
    assert trims == [(OBJECTS, node.wal.next_sequence)], "after the last, and all of it"
    assert all(stream.committed_offset == len(RECORDS) for stream in streams)
    held = [part.stream_id for commit in node.cluster.commits for part in commit.stream_set_object.ranges]  # type: ignore[union-attr]
    assert held == sorted(stream.stream_id for stream in streams), "each in one object, in their order"
    for stream in streams:
        assert payloads_of(await read_all(stream)) == RECORDS
    await node.close()
    assert node.failures == []


@pytest.mark.parametrize("step", ["commit:before", "commit:after"])
@pytest.mark.parametrize("occurrence", range(1, OBJECTS + 1))
async def test_a_process_that_crashes_between_two_commits_uploads_the_rest_after_its_restart(
    tmp_path: Path, step: str, occurrence: int
) -> None:
    node, streams = await wide_node(tmp_path)
    node.cluster.on_step = dies_at(step, occurrence)
    with pytest.raises(StorageFailedError):
        await node.client.force_upload()
    committed = occurrence - (step == "commit:before")
    assert len(node.cluster.commits) == committed
    node.cluster.on_step = lambda _: None
    client = await node.restart()
    assert client.recovery.skipped_committed == committed * 25 * len(RECORDS)
    assert client.recovery.records == (OBJECTS - committed) * 25 * len(RECORDS)
    assert max(widths(node.cluster.commits)) <= STREAMS_MAX
    assert_each_range_is_in_one_object(node.cluster)
    for stream in await node.open([stream.stream_id for stream in streams]):
        assert payloads_of(await read_all(stream)) == RECORDS
    await node.close()


@pytest.mark.parametrize("occurrence", range(1, OBJECTS + 1))
async def test_a_recovery_respects_the_limit_and_may_crash_between_its_commits(
    tmp_path: Path, occurrence: int
) -> None:
    node, streams = await wide_node(tmp_path)
    node.cluster.on_step = dies_at("commit:after", occurrence)
    with pytest.raises(CrashError):
        await node.restart()
    assert widths(node.cluster.commits) == [25] * occurrence
    client = await node.restart()
    assert client.recovery.records == (OBJECTS - occurrence) * 25 * len(RECORDS)
    assert sum(widths(node.cluster.commits)) == STREAMS
    assert max(widths(node.cluster.commits)) <= STREAMS_MAX
    assert_each_range_is_in_one_object(node.cluster)
    for stream in await node.open([stream.stream_id for stream in streams]):
        assert payloads_of(await read_all(stream)) == RECORDS
    await node.close()


@pytest.mark.parametrize("owner_dies", [True, False], ids=["in the owner's upload", "in the takeover"])
@pytest.mark.parametrize("occurrence", range(1, OBJECTS + 1))
async def test_the_trim_point_of_an_object_wal_is_sent_with_the_last_commit(
    cluster: DisklessCluster, *, owner_dies: bool, occurrence: int
) -> None:
    """If it were sent earlier, a recoverer would not find the data of the later commits."""
    old, new = [
        await cluster.broker(node_id, set_object_streams_max=STREAMS_MAX)
        for node_id in (NodeId(1), NodeId(2))
    ]
    streams = await old.open(*await old.client.create_streams([{}] * STREAMS))
    for payload in RECORDS:
        await asyncio.gather(*[old.append(stream, payload) for stream in streams])
    if owner_dies:
        cluster.model.on_step = dies_at("commit:after", occurrence)
        with pytest.raises(StorageFailedError):
            await old.client.force_upload()
    (wal,) = cluster.fail_over(NodeId(1), new)
    await old.stop()
    if not owner_dies:
        cluster.model.on_step = dies_at("commit:after", occurrence)
        with pytest.raises(CrashError):
            await cluster.recover(wal, new, set_object_streams_max=STREAMS_MAX)
    cluster.model.on_step = lambda _: None
    told = [commit.trim_sequence for commit in cluster.model.commits]
    assert [bool(sequence) for sequence in told] == [number == OBJECTS for number in range(1, occurrence + 1)]
    for again in cluster.model.assign_wals(NodeId(1), new.node):
        await cluster.recover(again, new, set_object_streams_max=STREAMS_MAX)
    assert wal.name in cluster.model.closed_wals
    assert max(widths(cluster.model.commits)) <= STREAMS_MAX
    assert_each_range_is_in_one_object(cluster.model)
    await cluster.check()
