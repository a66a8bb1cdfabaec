"""Cost of a cold reader of one partition among many before and after compaction: requests per
gigabyte, and speed.

PONOR_COLD_GIGABYTES (0.5; the promise is for 8) are written to PONOR_COLD_PARTITIONS (200; 1000) in
uploads of at most 64 MiB, on the store PONOR_STORE (s3 or directory). The broker restarts before
each reading, so its caches are empty. `--basetemp` selects another place for the data, which is
stored twice for a while.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS

from tests.acceptance.bulk import produce_bulk
from tests.acceptance.cold_fetch import fetch_all
from tests.acceptance.compaction_cluster import (
    EAGER,
    GB,
    MIB,
    calls_by_type,
    cluster_on,
    image_of,
    metadata_of,
    wait_until_compacted,
)
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import bytes_read_from_store, create_topic
from tests.e2e.stores import store_for_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

GIGABYTES = float(os.environ.get("PONOR_COLD_GIGABYTES", "0.5"))
PARTITIONS = int(os.environ.get("PONOR_COLD_PARTITIONS", "200"))
STORE = os.environ.get("PONOR_STORE", "s3")
UPLOAD_BYTES = 64 * MIB
INDEX_CACHE_BYTES = 4 * MIB
"""A start opens all partitions and so reads the indexes of all objects. That a reader finds them
cached is not measured."""
PROMISED_GB = 8.0
"""The promise is checked from this size on. Below it, there are too few uploads for a difference."""
FEWER_MIN = 10.0
COMPACTION_S_MAX = 1500.0
QUIET_S = 5.0


@dataclass(frozen=True, slots=True)
class ColdRead:
    """A reading of one partition with empty caches."""

    batch_bytes: int
    gets: int
    store_bytes: float
    seconds: float

    @property
    def gets_per_gb(self) -> float:
        """Requests per 10^9 bytes of batches."""
        return self.gets * GB / self.batch_bytes

    def __str__(self) -> str:
        return (
            f"{self.gets_per_gb:,.0f} calls/GB, {self.batch_bytes / self.seconds / 1e6:.1f} MB/s,"
            f" {self.store_bytes / self.batch_bytes:.2f} B read/B"
        )


def test_compaction_reduces_the_requests_of_a_cold_reader_to_a_tenth(tmp_path: Path) -> None:
    total_bytes = int(GIGABYTES * GB)
    settings = {
        **EAGER,
        "upload_size_bytes_max": UPLOAD_BYTES,
        "upload_interval_ms": 600_000,
        "wal_bytes_max": 512 * MIB,
        "index_cache_bytes_max": INDEX_CACHE_BYTES,
    }
    with (
        store_for_test(STORE, tmp_path) as store,
        cluster_on(store, tmp_path / "ponor", settings, "--compactors", "0") as cluster,
    ):
        create_topic(cluster, "cold", PARTITIONS)
        produce_bulk(cluster.bootstrap, "cold", partitions=PARTITIONS, total_bytes=total_bytes)
        before = _read_cold(cluster)
        uploads = len(list(image_of(cluster)[STREAM_SET_OBJECTS]))
        cluster.run("node", "add", "compactor")
        seconds = wait_until_compacted(cluster, s_max=COMPACTION_S_MAX)
        after = _read_cold(cluster)
        found = metadata_of(image_of(cluster))
    fewer = before.gets_per_gb / after.gets_per_gb
    print(
        f"\n| cold read of one partition of {PARTITIONS}, {GIGABYTES:g} GB in {uploads} uploads, {STORE}"
        f" store | before {before} | after {after}"
        f" | {fewer:.1f}x fewer calls | compacted in {seconds:.0f} s to {found.objects} objects |"
    )
    assert after.batch_bytes == before.batch_bytes
    assert fewer > 1
    if GIGABYTES >= PROMISED_GB:
        assert fewer >= FEWER_MIN


def _read_cold(cluster: LocalCluster) -> ColdRead:
    """Read one partition after a restart of the broker."""
    cluster.run("node", "stop", "broker", "0")
    cluster.run("node", "start", "broker", "0")
    cluster.wait_serving("broker")
    _wait_until_all_are_open(cluster)
    gets, store_bytes = calls_by_type(cluster, "broker")["get"], bytes_read_from_store(cluster)
    batch_bytes, seconds = fetch_all(cluster.bootstrap, "cold", PARTITIONS // 2)
    return ColdRead(
        batch_bytes,
        calls_by_type(cluster, "broker")["get"] - gets,
        bytes_read_from_store(cluster) - store_bytes,
        seconds,
    )


def _wait_until_all_are_open(cluster: LocalCluster) -> None:
    """Wait until the broker has read no index for a while: it serves before all its partitions are
    open, and opening them reads indexes.
    """
    seen, since = -1.0, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        if (gets := calls_by_type(cluster, "broker")["get"]) != seen:
            seen, since = gets, time.monotonic()
        time.sleep(0.2)
