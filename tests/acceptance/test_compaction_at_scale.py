"""Compaction of gigabytes: memory and CPU of the worker, and size of the metadata.

PONOR_GENERATED_GIGABYTES (2; the promise is for 20) is the size in the generating store,
PONOR_COMPACTED_GIGABYTES (0.5; 4) on real stores, over PONOR_COMPACTED_PARTITIONS (256). Data of a
real store may be in the test's directory three times: `--basetemp` selects another place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.bulk import produce_bulk, read_bulk
from tests.acceptance.compaction_cluster import (
    EAGER,
    GB,
    MIB,
    calls_by_type,
    cluster_on,
    cp_cpu_s_per_gb,
    cpu_s,
    image_of,
    metadata_of,
    resident_bytes_max,
    usd_of,
    wait_until_compacted,
)
from tests.acceptance.generated_compaction import compact_generated
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.steady import spawn_pool
from tests.e2e.scenarios import create_topic
from tests.e2e.stores import STORES, StoreForTest, store_for_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

GENERATED_GB = float(os.environ.get("PONOR_GENERATED_GIGABYTES", "2"))
COMPACTED_GB = float(os.environ.get("PONOR_COMPACTED_GIGABYTES", "0.5"))
PARTITIONS = int(os.environ.get("PONOR_COMPACTED_PARTITIONS", "256"))
BUDGET_BYTES = 64 * MIB
RSS_CONSTANT_BYTES = 160 * MIB
"""Memory of a worker in addition to its budget: interpreter, clients, indexes, eight reads and four
writes in flight."""
METADATA_BYTES_PER_GB_MAX = 2_000
WORKER_CPU_S_PER_GB_MAX = 1.3
"""On the S3 server. On a directory it is only informative: without O_DIRECT (tmpfs) the page cache
costs more than everything else."""
COMPACTION_S_MAX = 1200.0


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreForTest]:
    with store_for_test(request.param, tmp_path) as prepared:
        yield prepared


def test_gigabytes_of_generated_blocks_within_the_budget() -> None:
    with spawn_pool(1) as pool:
        found = pool.submit(compact_generated, int(GENERATED_GB * GB), BUDGET_BYTES).result()
    per_gb = GB / found.data_bytes
    print(
        f"\n| generated {found.data_bytes / GB:.1f} GB, {found.streams} streams | {found.tasks} tasks | RSS"
        f" {found.peak_rss_bytes / MIB:.0f} MiB"
        f" ({found.start_rss_bytes / MIB:.0f} before), budget {BUDGET_BYTES / MIB:.0f} |"
        f" {found.metadata_bytes * per_gb:.0f} B of metadata/GB,"
        f" {found.pieces_per_stream_max} piece(s) a stream | {found.written_bytes / found.data_bytes:.2f} GB"
        f" written/GB, {found.copied_bytes / found.data_bytes:.2f} by the store"
        f" | calls/GB {_per_gb(found.calls, per_gb)}, {1e3 * usd_of(found.calls) * per_gb:.2f} m$/GB | CPU"
        f" with generating {found.cpu_s * per_gb:.1f} s/GB |"
    )
    assert found.peak_rss_bytes <= BUDGET_BYTES + RSS_CONSTANT_BYTES
    assert found.metadata_bytes * per_gb <= METADATA_BYTES_PER_GB_MAX


def test_a_worker_keeps_its_budget_on_a_real_store(
    store: StoreForTest, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    total_bytes = int(COMPACTED_GB * GB)
    settings = {**EAGER, "upload_size_bytes_max": 64 * MIB, "compaction_budget_bytes": BUDGET_BYTES}
    with cluster_on(store, tmp_path / "ponor", settings, "--compactors", "0") as cluster:
        create_topic(cluster, "bulk", PARTITIONS)
        produce_bulk(cluster.bootstrap, "bulk", partitions=PARTITIONS, total_bytes=total_bytes)
        cluster.run("node", "add", "compactor", "--set", f"compaction_budget_bytes={BUDGET_BYTES}")
        cpu_before_s = cpu_s(cluster, "compactor")
        seconds = wait_until_compacted(cluster, s_max=COMPACTION_S_MAX)
        spent_s = cpu_s(cluster, "compactor") - cpu_before_s
        resident_bytes = resident_bytes_max(cluster, "compactor")
        replaced_bytes = _counted(cluster, "replaced")
        written_bytes = _counted(cluster, "written")
        calls = calls_by_type(cluster, "compactor")
        found = metadata_of(image_of(cluster))
        assert read_bulk(cluster.bootstrap, "bulk", partitions=PARTITIONS) >= total_bytes
    name = request.node.callspec.id
    cp_s = cp_cpu_s_per_gb(tmp_path, total_bytes)
    print(
        f"\n| {name} store, {total_bytes / GB:.1f} GB, {PARTITIONS} partitions | RSS"
        f" {resident_bytes / MIB:.0f} MiB, budget {BUDGET_BYTES / MIB:.0f}"
        f" | worker CPU {spent_s * GB / replaced_bytes:.2f} s/GB replaced ({replaced_bytes / GB:.2f} GB), cp"
        f" {cp_s:.2f} s/GB | {replaced_bytes / seconds / 1e6:.0f} MB/s"
        f" | written/replaced {written_bytes / replaced_bytes:.2f} | calls/GB"
        f" {_per_gb(calls, GB / replaced_bytes)} | {found.bytes_per_gb:.0f} B of metadata/GB,"
        f" {found.compacted_range_bytes:.1f} B per range of a compacted set object |"
    )
    assert replaced_bytes >= 0.9 * total_bytes
    assert resident_bytes <= BUDGET_BYTES + RSS_CONSTANT_BYTES
    if store.server is not None:
        assert spent_s * GB / replaced_bytes <= WORKER_CPU_S_PER_GB_MAX


def _counted(cluster: LocalCluster, what: str) -> float:
    return cluster.metric("compactor", f"ponor_compactor_{what}_bytes_total", {})


def _per_gb(calls: dict[str, int], per_gb: float) -> str:
    return ", ".join(f"{name} {number * per_gb:.0f}" for name, number in sorted(calls.items()))
