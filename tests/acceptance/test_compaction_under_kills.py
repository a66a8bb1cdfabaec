"""Three compactors and a garbage collector are killed repeatedly while a topic is produced and its old data
read. All fetches must be equal, and finally the bucket must contain exactly the live objects.

PONOR_COMPACTOR_KILLS (100 is the promise) sets the number of kills.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.streams import STREAMS
from s3stream.objects.keys import parse_object_key

from tests.acceptance.compaction_cluster import (
    EAGER,
    MIB,
    cluster_on,
    image_of,
    is_made_by,
    known_keys,
    metadata_of,
    wait_until_compacted,
)
from tests.acceptance.repeated_reads import repeated_reads
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.steady import steady_load, wait_for
from tests.e2e.scenarios import create_topic, read_and_judge
from tests.e2e.stores import store_for_test
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("PONOR_COMPACTOR_KILLS", "20"))
SEED = int(os.environ.get("PONOR_SEED", "7"))
VICTIMS = (("compactor", 0), ("compactor", 1), ("compactor", 2), ("gc", 0))
PARTITIONS = 8
RATE_BYTES = 1.5e6
PAUSE_S = (0.2, 1.5)
DRAINED_S_MAX = 240.0
PIECES_PER_STREAM_MAX = 24
SETTINGS = {
    **EAGER,
    "upload_interval_ms": 500,
    "log_cache_bytes_max": 16 * MIB,
    "block_cache_bytes_max": 4 * MIB,
    "compaction_settle_ms": 0,
    "compaction_patience_ms": 1_000,
    "compaction_fan_in": 4,
    "compactor_split_size_bytes": MIB,
    "compactor_part_size_bytes": 5 * MIB,
    "compactor_write_bytes_per_s_max": 4 * MIB,
    "compactor_lease_ttl_ms": 1_500,
    "compactor_prepared_ttl_ms": 20_000,
    "destroy_delay_ms": 10_000,
    "claim_ttl_ms": 2_000,
    "reconcile_interval_ms": 5_000,
    "reconcile_age_ms_min": 15_000,
}
"""Every task takes seconds, so that kills interrupt it; remains become garbage soon."""


def test_a_hundred_kills_leave_no_garbage(tmp_path: Path) -> None:
    with (
        store_for_test("s3", tmp_path) as store,
        cluster_on(store, tmp_path / "ponor", SETTINGS, "--compactors", "3") as cluster,
    ):
        server = store.server
        assert server is not None
        create_topic(cluster, "load", PARTITIONS)
        began = time.monotonic()
        with (
            steady_load(
                cluster, "load", partitions=PARTITIONS, producers=2, rate_bytes=RATE_BYTES, seed=SEED
            ) as load,
            repeated_reads(cluster.bootstrap, "load", PARTITIONS, tmp_path / "stop-reading") as reads,
        ):
            load.goes_on(500)
            killed = _kill_at_random(cluster)
            load.goes_on(500)
            passes, records = reads.stop()
        took_s = time.monotonic() - began
        assert passes >= 2, "old data was read during the kills"
        wait_until_compacted(cluster, s_max=DRAINED_S_MAX, still_s=3.0)
        wait_for(
            lambda: _garbage(cluster) == 0, "everything that was replaced is deleted", s_max=DRAINED_S_MAX
        )
        wait_for(
            lambda: not server.open_multipart_uploads(),
            "no multipart upload is open",
            s_max=DRAINED_S_MAX,
        )
        wait_for(lambda: _strangers(cluster, server) == 0, "no orphan is left", s_max=DRAINED_S_MAX)
        live, missing = _live_and_missing(cluster, server)
        found = metadata_of(image_of(cluster))
        pieces = found.ranges + found.objects - found.set_objects
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])
        print(
            f"\n| {KILLS} kills in {took_s:.0f} s: {killed} | {len(load.acknowledged.places):,} records,"
            f" {passes} passes of cold reads over {records:,} records equal"
            f" | bucket {live} objects = live, 0 missing, 0 strange, 0 open uploads |"
            f" {found.data_bytes / 1e6:.0f} MB, {found.metadata_bytes} B of metadata, {pieces} pieces |"
        )
        assert missing == 0
        assert "are sound" in cluster.run("object", "verify")
        streams = sum(1 for row in image_of(cluster)[STREAMS] if row.end_offset > row.start_offset)
        assert pieces <= PIECES_PER_STREAM_MAX * streams


def _kill_at_random(cluster: LocalCluster) -> dict[str, int]:
    """SIGKILL the processes in turn; return the number of kills of each."""
    chance = random.Random(SEED)
    killed: dict[str, int] = {}
    while sum(killed.values()) < KILLS:
        time.sleep(chance.uniform(*PAUSE_S))
        serving = [each for each in VICTIMS if cluster.process(*each)["state"] == "serving"]
        if not serving:
            continue
        role, number = chance.choice(serving)
        if not cluster.kill(role, number):
            continue
        killed[f"{role}-{number}"] = killed.get(f"{role}-{number}", 0) + 1
    for role, number in VICTIMS:
        cluster.wait_serving(role, number)
    return dict(sorted(killed.items()))


def _garbage(cluster: LocalCluster) -> int:
    """Rows that GC must still remove: all uncommitted ones except ids that brokers have prepared."""
    image = image_of(cluster)
    return sum(
        1
        for row in image[OBJECTS]
        if row.state is not ObjectState.COMMITTED
        and not (row.state is ObjectState.PREPARED and is_made_by(image, row, NodeRole.BROKER))
    )


def _in_bucket(server: SeaweedServer) -> set[str]:
    """Keys of objects; nothing else may be below their prefixes."""
    keys = {key.removeprefix("ponor/") for key in server.objects("ponor/")}
    found: set[str] = set()
    for key in keys:
        try:
            parse_object_key(key)
        except ValueError:
            continue
        found.add(key)
    return found


def _live_and_missing(cluster: LocalCluster, server: SeaweedServer) -> tuple[int, int]:
    live, _ = known_keys(image_of(cluster))
    return len(live), len(live - _in_bucket(server))


def _strangers(cluster: LocalCluster, server: SeaweedServer) -> int:
    """Keys in the bucket that are not live."""
    there = _in_bucket(server)
    live, _ = known_keys(image_of(cluster))
    return len(there - live)
