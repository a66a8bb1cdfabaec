"""The Meta stream as a key-value store: replay, compaction, unknown keys, damage."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.log.meta_stream import MetaStream
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaEntry, MetaKey, MetaValues, decode_entry, fold

from services.broker.tests.memory_streams import MemoryStream

KEYS = st.sampled_from(["LOG", "PARTITION", "FROM_A_LATER_RELEASE"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=8)),
        st.tuples(st.just("change"), KEYS, st.binary(max_size=8)),
        st.tuples(st.just("rewrite"), st.just(""), st.just(b"")),
        st.tuples(st.just("trim"), st.just(""), st.just(b"")),
        st.tuples(st.just("upload"), st.just(""), st.just(b"")),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(STEPS)
async def test_a_replay_returns_the_written_values_after_any_compaction(
    steps: list[tuple[str, str, bytes]],
) -> None:
    stream = MemoryStream(1)
    meta = MetaStream(stream)
    written: list[MetaEntry] = []
    for kind, key, value in steps:
        if kind == "put":
            written.append(MetaEntry(MetaKey(key), value))
            await meta.put(MetaKey(key), value)
        elif kind == "change":
            written.append(MetaEntry(MetaKey(key), value, is_change=True))
            await meta.change(MetaKey(key), value)
        elif kind == "rewrite":
            meta.rewrite({})
        elif kind == "upload":
            stream.committed_offset = stream.confirmed_offset
        else:
            await meta.trim_rewritten()
    replayed = MetaStream(stream)
    assert _plain(await replayed.replay()) == _plain(fold(written))


def _plain(values: MetaValues) -> dict[str, tuple[bytes | None, list[bytes]]]:
    return {key: (value.whole, value.changes) for key, value in values.items()}


async def test_a_snapshot_replaces_the_changes_of_its_key() -> None:
    stream = MemoryStream(1)
    meta = MetaStream(stream)
    await meta.put(MetaKey("LOG"), b"whole")
    for _ in range(10):
        await meta.change(MetaKey("LOG"), b"change")
    meta.rewrite({MetaKey("LOG"): b"new whole"})
    assert not await meta.trim_rewritten()  # the rewrite is not in objects yet: the old entries must stay
    stream.committed_offset = stream.confirmed_offset
    assert await meta.trim_rewritten()
    assert (stream.start_offset, len(stream.records)) == (11, 1)
    assert _plain(await MetaStream(stream).replay()) == {"LOG": (b"new whole", [])}


@given(st.text("ABC_", max_size=20), st.binary(max_size=100), st.booleans())
def test_entries_round_trip(key: str, value: bytes, is_change: bool) -> None:
    entry = MetaEntry(MetaKey(key), value, is_change)
    assert decode_entry(entry.encode(), "here") == entry


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_raise_a_named_error(data: bytes) -> None:
    try:
        entry = decode_entry(data, "meta stream 5, offset 7")
    except PartitionCorruptError as error:
        named = "meta stream 5, offset 7" in str(error)
    else:
        named = entry.encode() == data
    assert named


async def test_a_failed_rewrite_is_not_reported_as_an_unhandled_error() -> None:
    stream, forgotten = MemoryStream(1), list[str]()
    meta = MetaStream(stream)
    await meta.put(MetaKey("LOG"), b"whole")
    asyncio.get_running_loop().set_exception_handler(lambda _, what: forgotten.append(what["message"]))
    stream.hold = True
    meta.rewrite({MetaKey("LOG"): b"whole"})
    stream.fail()
    gc.collect()
    assert forgotten == []


async def test_damage_is_reported_with_its_offset() -> None:
    stream = MemoryStream(5)
    await stream.append(b"\x02 not an entry", count=1, max_timestamp=-1)
    with pytest.raises(PartitionCorruptError, match="meta stream 5, offset 0"):
        await MetaStream(stream).replay()
