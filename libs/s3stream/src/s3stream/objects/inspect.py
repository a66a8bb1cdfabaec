"""Inspection of one object for `ponor object inspect` and `ponor object verify`.

Reads one block at a time, so an object of any size needs memory for one block only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import ObjectStore

from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import decode_block
from s3stream.objects.format import FORMAT_VERSION, BlockEntry
from s3stream.objects.index import ObjectIndex
from s3stream.objects.keys import parse_object_key
from s3stream.objects.reader import read_index


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    """Content of an object according to its index. `data_bytes` excludes index and footer."""

    key: str
    namespace: str
    object_id: ObjectId
    format_version: int
    size_bytes: int
    data_bytes: int
    stream_count: int
    record_count: int
    max_timestamp_ms: int
    blocks: tuple[BlockEntry, ...]


async def describe(store: ObjectStore, key: str) -> ObjectDescription:
    """Open an object and list its blocks without reading data.

    Raises:
        ObjectNotFoundError: no such object.
        ObjectCorruptError: its index or footer breaks the format.
        ValueError: this is not the key of an object.
    """
    namespace, object_id = parse_object_key(key)
    index = await read_index(store, key)
    blocks = tuple(index)
    return ObjectDescription(
        key=key,
        namespace=namespace,
        object_id=object_id,
        format_version=FORMAT_VERSION,
        size_bytes=index.size_bytes,
        data_bytes=blocks[-1].position + blocks[-1].size_bytes,
        stream_count=len({entry.stream_id for entry in blocks}),
        record_count=sum(entry.record_count for entry in blocks),
        max_timestamp_ms=max(entry.max_timestamp_ms for entry in blocks),
        blocks=blocks,
    )


async def verify(store: ObjectStore, key: str) -> list[str]:
    """Read a whole object and return all violations of the format, one sentence each. An empty list
    means that the object is valid.

    Raises:
        ObjectNotFoundError: no such object.
        ValueError: this is not the key of an object.
    """
    try:
        index = await read_index(store, key)
    except ObjectCorruptError as error:
        return [str(error)]
    problems: list[str] = []
    for entry in index:
        problem = await _block_problem(store, index, entry)
        if problem is not None:
            problems.append(problem)
    return problems


async def _block_problem(store: ObjectStore, index: ObjectIndex, entry: BlockEntry) -> str | None:
    data = await store.get(index.key, entry.position, entry.size_bytes)
    try:
        decode_block(index.key, entry, data)
    except ObjectCorruptError as error:
        return str(error)
    return None
