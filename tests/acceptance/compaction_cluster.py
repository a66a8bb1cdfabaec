"""A cluster for measurements of compaction: eager settings, bulk data, compactors that join later,
metrics of image and processes.

The tests contain the promises. A `StoreForTest` may be the directory store or the S3 server.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from ponor_cli.clients.image_reader import read_image
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectRow, ObjectState
from ponor_metadata.nouns.streams import STREAM_OBJECTS
from s3stream.objects.keys import object_key
from s3stream.stores.policy import REQUEST_CLASSES

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.stores import StoreForTest

GB: Final = 1_000_000_000
MIB: Final = 1 << 20
EAGER: Final = {
    "compaction_settle_ms": "1000",
    "compaction_patience_ms": "3000",
    "compaction_survey_interval_ms": "1000",
    "compactor_poll_interval_ms_max": "1000",
    "destroy_delay_ms": "5000",
}
STREAM_OBJECT_ROW_BYTES: Final = 68
SET_OBJECT_ROW_BYTES: Final = 100
INDEX_BYTES_PER_STREAM: Final = 4
"""Per object in the image, as measured by `make bench-quorum`; ranges are counted in addition."""
PUT_USD_PER_MILLION: Final = 5.0
GET_USD_PER_MILLION: Final = 0.4
"""S3 Standard's list prices; deletes are free."""


def cluster_on(
    store: StoreForTest, directory: Path, settings: Mapping[str, object], *arguments: str
) -> LocalCluster:
    """A cluster on a store. Compactors are started by its arguments, or later."""
    return LocalCluster(
        directory,
        settings=settings,
        arguments=[*store.arguments, *arguments],
        environment=store.environment,
    )


def image_of(cluster: LocalCluster) -> MetadataImage:
    """The committed metadata."""
    return asyncio.run(read_image(cluster.describe()["controllers"]))


def is_made_by(image: MetadataImage, row: ObjectRow, role: NodeRole) -> bool:
    """Whether a node of this role prepared the object."""
    node = image[NODES].get(row.node_id)
    return node is not None and node.role is role


def uncompacted(image: MetadataImage) -> list[ObjectRow]:
    """Stream set objects that brokers uploaded."""
    rows = [image[OBJECTS].get(each.object_id) for each in image[STREAM_SET_OBJECTS]]
    return [row for row in rows if row is not None and is_made_by(image, row, NodeRole.BROKER)]


def wait_until_compacted(cluster: LocalCluster, *, s_max: float, still_s: float = 6.0) -> float:
    """Wait until almost no uploaded set object is left and no task was leased for a while; return
    the seconds.
    """
    began = time.monotonic()
    changed, seen = began, -1.0
    while time.monotonic() - changed < still_s:
        image = image_of(cluster)
        now = float(len(image[COMPACTIONS])) + sum(row.object_id for row in image[OBJECTS] if _is_live(row))
        if now != seen or len(image[COMPACTIONS]) or len(uncompacted(image)) > 1:
            seen, changed = now, time.monotonic()
        assert time.monotonic() < began + s_max, (
            f"not compacted within {s_max:.0f} s: {len(uncompacted(image))} uploads left"
        )
        time.sleep(0.5)
    return changed - began


def _is_live(row: ObjectRow) -> bool:
    return row.state is ObjectState.COMMITTED


@dataclass(frozen=True, slots=True)
class Metadata:
    """Size of the committed objects in the image."""

    data_bytes: int
    objects: int
    set_objects: int
    ranges: int
    metadata_bytes: int
    compacted_range_bytes: float
    """Bytes per range in stream set objects of compactors; 0 without one."""

    @property
    def bytes_per_gb(self) -> float:
        """Bytes of metadata per 10^9 bytes of data."""
        return self.metadata_bytes * GB / max(1, self.data_bytes)


def metadata_of(image: MetadataImage) -> Metadata:
    """Count the bytes of the rows."""
    live = [row for row in image[OBJECTS] if _is_live(row)]
    metadata_bytes = STREAM_OBJECT_ROW_BYTES * len(image[STREAM_OBJECTS])
    ranges = settled_bytes = settled_ranges = 0
    for several in image[STREAM_SET_OBJECTS]:
        own = SET_OBJECT_ROW_BYTES + len(several.ranges.data)
        own += INDEX_BYTES_PER_STREAM * len(list(several.ranges.decoded.stream_ids()))
        metadata_bytes += own
        ranges += len(several.ranges.decoded)
        row = image[OBJECTS].get(several.object_id)
        if row is not None and is_made_by(image, row, NodeRole.COMPACTOR):
            settled_bytes += own
            settled_ranges += len(several.ranges.decoded)
    return Metadata(
        sum(row.size_bytes for row in live),
        len(live),
        len(image[STREAM_SET_OBJECTS]),
        ranges,
        metadata_bytes,
        settled_bytes / settled_ranges if settled_ranges else 0.0,
    )


def known_keys(image: MetadataImage) -> tuple[set[str], int]:
    """Keys of the committed objects, and the number of objects in other states."""
    live = {object_key(row.namespace, row.object_id) for row in image[OBJECTS] if _is_live(row)}
    return live, sum(not _is_live(row) for row in image[OBJECTS])


def cpu_s(cluster: LocalCluster, role: str, number: int = 0) -> float:
    """CPU seconds of a process so far."""
    times = psutil.Process(cluster.process(role, number)["pid"]).cpu_times()
    return times.user + times.system


def resident_bytes_max(cluster: LocalCluster, role: str, number: int = 0) -> int:
    """Maximum memory of a process."""
    status = Path(f"/proc/{cluster.process(role, number)['pid']}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def calls_by_type(cluster: LocalCluster, role: str, number: int = 0) -> Counter[str]:
    """Requests of a process to the store, by operation."""
    return Counter(
        {
            name: int(cluster.metric(role, "ponor_object_store_requests_total", {"op": name}, number=number))
            for name in REQUEST_CLASSES
        }
    )


def usd_of(calls: Mapping[str, int]) -> float:
    """Cost by list price."""
    puts = sum(number for name, number in calls.items() if REQUEST_CLASSES[name] == "put")
    gets = sum(number for name, number in calls.items() if REQUEST_CLASSES[name] == "get")
    return (puts * PUT_USD_PER_MILLION + gets * GET_USD_PER_MILLION) / 1e6


def cp_cpu_s_per_gb(directory: Path, total_bytes: int) -> float:
    """CPU of `cp` for the same bytes in files of 64 MiB, for comparison; at most one gigabyte of them."""
    source, target = directory / "cp-source", directory / "cp-target"
    source.mkdir()
    noise = os.urandom(MIB)
    files = max(1, min(total_bytes, GB) // (64 * MIB))
    for number in range(files):
        with (source / str(number)).open("wb") as file:
            for _ in range(64):
                file.write(noise)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "-r", "--reflink=never", str(source), str(target)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(source)
    shutil.rmtree(target)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent_s * GB / (files * 64 * MIB)


def directory_bytes(directory: Path) -> int:
    """Bytes on disk of all files below a directory; files deleted meanwhile do not count."""
    total = 0
    for path in directory.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
