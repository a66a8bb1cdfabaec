"""The marker of a cluster in its object store: `clusters/NAMESPACE/marker` (docs/formats/cluster-marker.md).

The marker names the cluster that writes under a namespace. The first node of the cluster that reaches the
store puts the marker if it is absent. Every node checks it at its start, and collectors check it before they
delete. A broker with a file write-ahead log keeps a copy in its directory as a proof that it has checked the
store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from crc32c import crc32c
from ponor_runtime.disk import Disk
from ponor_runtime.durable_file import read_whole, write_durably
from ponor_runtime.identity import ClusterOrdinal
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
)

FORMAT: Final = 1
PREFIX: Final = "clusters/"
NAME: Final = "/marker"
MARKER_BYTES_MAX: Final = 4_096


class MarkerDamagedError(ObjectStoreError):
    """A marker is not readable; the message names its key."""


@dataclass(frozen=True, slots=True)
class ClusterMarker:
    """The cluster that writes under a namespace."""

    cluster_id: str
    cluster_ordinal: ClusterOrdinal
    namespace: str

    @property
    def key(self) -> str:
        """The key of the marker in the store."""
        return f"{PREFIX}{self.namespace}{NAME}"

    def encode(self) -> bytes:
        """Encode as one line of JSON and one line with its CRC32C in hexadecimal."""
        content = {
            "format": FORMAT,
            "cluster_id": self.cluster_id,
            "cluster_ordinal": self.cluster_ordinal,
            "namespace": self.namespace,
        }
        line = json.dumps(content, sort_keys=True).encode() + b"\n"
        return line + f"{crc32c(line):08x}\n".encode()

    def __str__(self) -> str:
        return f"cluster {self.cluster_id} (ordinal {self.cluster_ordinal}, namespace {self.namespace})"


def decode_marker(data: bytes, name: str) -> ClusterMarker:
    """Decode a marker or its copy. `name`: the key or the path, for messages.

    Raises:
        MarkerDamagedError: the bytes are damaged or have another format.
    """
    line, newline, checksum = data.partition(b"\n")
    if not newline or checksum != f"{crc32c(line + newline):08x}\n".encode():
        raise MarkerDamagedError(f"{name}: the checksum does not match")
    content: dict[str, Any] = json.loads(line)
    if content["format"] != FORMAT:
        raise MarkerDamagedError(f"{name}: format {content['format']} is not known; upgrade this node")
    return ClusterMarker(
        content["cluster_id"], ClusterOrdinal(content["cluster_ordinal"]), content["namespace"]
    )


async def read_marker(store: ObjectStore, key: str) -> ClusterMarker | None:
    """Read the marker under a key; None if there is none.

    Raises:
        MarkerDamagedError: the marker is not readable, or names another namespace.
        ObjectStoreError: the store does not answer.
    """
    try:
        marker = decode_marker(await store.get(key, 0, MARKER_BYTES_MAX), key)
    except ObjectNotFoundError:
        return None
    if marker.key != key:
        raise MarkerDamagedError(f"{key}: the marker is for namespace {marker.namespace}")
    return marker


async def other_clusters(store: ObjectStore, own: ClusterMarker) -> list[str]:
    """Describe the other clusters that write to a store.

    Raises:
        ObjectStoreError: the store does not answer.
    """
    keys = [info.key async for info in store.list(PREFIX) if info.key.endswith(NAME) and info.key != own.key]
    return [await _named(store, key) for key in sorted(keys)]


async def _named(store: ObjectStore, key: str) -> str:
    try:
        return str(await read_marker(store, key) or key)
    except MarkerDamagedError as error:
        # Another cluster's marker may be damaged or from a later release. This must not stop this node.
        return f"a cluster whose marker is not readable ({error})"


async def put_marker(store: ObjectStore, marker: ClusterMarker) -> ClusterMarker:
    """Put a marker if it is absent; return the present one.

    Raises:
        MarkerDamagedError, ObjectStoreError: as `read_marker`.
    """
    try:
        await store.put(marker.key, [marker.encode()])
    except ObjectAlreadyExistsError:
        return await read_marker(store, marker.key) or marker
    return marker


async def read_copy(disk: Disk, path: PurePath) -> ClusterMarker | None:
    """Read the copy of a marker in a node's directory; None if there is none.

    Raises:
        MarkerDamagedError: the copy is not readable.
    """
    try:
        return decode_marker(await read_whole(disk, path), str(path))
    except FileNotFoundError:
        return None


async def write_copy(disk: Disk, path: PurePath, marker: ClusterMarker) -> None:
    """Write a copy of a marker that was found in the store; durable on return.

    Raises:
        OSError: the write failed.
    """
    await write_durably(disk, path, [marker.encode()])
