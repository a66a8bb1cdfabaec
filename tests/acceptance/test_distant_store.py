"""The object WAL on a distant store: lognormal latency, p50 30 ms, p99 120 ms. One producer, one
partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.numbered import judge_numbered
from tests.e2e.load.paced import Paced, paced
from tests.e2e.load.slow_s3 import slow_s3
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(1200)]

P50_S, P99_S = 0.030, 0.120
SECONDS = 30.0
RECORD_BYTES = 1_000
JAVA_IN_FLIGHT_BYTES = 5 * 16 * RECORD_BYTES
"""Defaults: max.in.flight.requests.per.connection, and the records in a batch.size of 16,384 bytes,
which take about ten bytes more than their values."""
PEERS_WINDOW_MS = 250
JAVA_MEMORY = {"buffer.memory": str(4 << 20)}
"""The default buffer of 32 MiB takes two minutes through the fixed window, longer than the client's
delivery timeout. The data in flight is the same."""
TOPIC = "distant"


@contextmanager
def distant_cluster(tmp_path: Path, *arguments: str) -> Iterator[LocalCluster]:
    with (
        SeaweedServer(tmp_path / "s3") as store,
        slow_s3(store.endpoint, p50_s=P50_S, p99_s=P99_S) as endpoint,
    ):
        url = f"s3://{store.bucket}/ponor?endpoint={endpoint}"
        words = ["--wal", "object", "--object-store", url, *arguments]
        with LocalCluster(tmp_path / "ponor", arguments=words, environment=store.environment) as cluster:
            cluster.run("topic", "create", TOPIC, "--partitions", "1")
            yield cluster


def run_producer(
    cluster: LocalCluster,
    tmp_path: Path,
    family: str,
    rate_bytes: float,
    properties: dict[str, str] | None = None,
) -> Paced:
    with paced(
        family,
        tmp_path / "loads",
        bootstrap=cluster.bootstrap,
        topic=TOPIC,
        record_bytes=RECORD_BYTES,
        rate_bytes=rate_bytes,
        properties=properties,
    ) as running:
        time.sleep(SECONDS)
    judge_numbered(cluster.bootstrap, TOPIC, running)
    return running


def median_ms(running: Paced) -> float:
    latencies = running.latencies_s()
    return 1000 * latencies[len(latencies) // 2]


@pytest.mark.parametrize("window_ms", [0, PEERS_WINDOW_MS], ids=["adaptive", "250 ms window"])
def test_a_single_producer_is_not_slowed_by_batching(tmp_path: Path, window_ms: int) -> None:
    with distant_cluster(tmp_path, "--set", f"wal_window_ms={window_ms}") as cluster:
        slow = run_producer(cluster, tmp_path, "librdkafka", 10 * RECORD_BYTES)
        fast = run_producer(cluster, tmp_path, "librdkafka", 0)
        java = run_producer(cluster, tmp_path, "java", 0, JAVA_MEMORY)
        puts = cluster.metric("broker", "ponor_wal_object_puts_total", {})
    name = "adaptive" if window_ms == 0 else f"window of {window_ms} ms"
    print(f"{name}: 10 records/s end to end p50 {median_ms(slow):.0f} ms; {puts:.0f} slots in all")
    print(f"{name}: librdkafka {fast.bytes_per_s() / 1e6:.1f} MB/s, Java {java.bytes_per_s() / 1e6:.2f} MB/s")
    round_trip_s = median_ms(slow) / 1000
    allowed = JAVA_IN_FLIGHT_BYTES / round_trip_s
    print(
        f"{name}: Java's window of {JAVA_IN_FLIGHT_BYTES} bytes allows {allowed / 1e6:.2f} MB/s at"
        f" {1000 * round_trip_s:.0f} ms per round trip: {java.bytes_per_s() / allowed:.0%}"
    )
    if window_ms == 0:
        assert median_ms(slow) <= 60
        assert fast.bytes_per_s() >= 10e6
