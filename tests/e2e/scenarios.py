"""Verification scenarios for a running cluster, with sizes as parameters.

`tests/e2e` runs them small, as part of `make test`; `tests/acceptance` runs them at full size.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.judge import Acknowledged, judge
from tests.e2e.load.producers import CLIENT_FAMILIES, COMPRESSIONS, Assignment, produce
from tests.e2e.load.readers import read_all
from tests.e2e.load.steady import collect, spawn_pool, steady_load


def create_topic(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Create a topic with the project's own command."""
    cluster.run("topic", "create", topic, "--partitions", str(partitions))


def produce_mixed(cluster: LocalCluster, topic: str, *, records: int, partitions: int) -> Acknowledged:
    """Produce with every client family and codec, three at a time."""
    combinations = [(family, codec) for codec in COMPRESSIONS for family in CLIENT_FAMILIES]
    share = -(-records // len(combinations))
    acknowledged = Acknowledged()
    with spawn_pool(3) as pool:
        runs = []
        for family, codec in combinations:
            producer = f"{family}-{codec}"
            work = Assignment(cluster.bootstrap, topic, producer, 0, share, partitions, codec)
            runs.append((producer, pool.submit(produce, family, work)))
        collect(acknowledged, runs)
    assert len(acknowledged.places) == share * len(combinations)
    return acknowledged


def read_and_judge(
    cluster: LocalCluster, topic: str, partitions: int, acknowledged: Acknowledged, families: Iterable[str]
) -> None:
    """Read everything with every family without a group and check the result."""
    for family in families:
        seen = read_all(family, cluster.bootstrap, topic, partitions)
        judge(acknowledged, seen)
        print(f"{family}: {seen.count} records equal, in order, no duplicates")


def produce_through_kills(
    cluster: LocalCluster,
    topic: str,
    *,
    partitions: int,
    producers: int,
    rate_bytes: float,
    kills: Sequence[tuple[str, ...]],
    pause_s: tuple[float, float],
    seed: int,
) -> Acknowledged:
    """Run idempotent producers at a steady rate through kills.

    Each entry of `kills` names roles that are killed together.
    """
    chance = random.Random(seed)
    with steady_load(
        cluster, topic, partitions=partitions, producers=producers, rate_bytes=rate_bytes, seed=seed
    ) as load:
        for roles in kills:
            _kill_and_wait(cluster, roles)
            time.sleep(chance.uniform(*pause_s))
    return load.acknowledged


def _kill_and_wait(cluster: LocalCluster, roles: tuple[str, ...]) -> None:
    before = {role: cluster.process(role)["restarts"] for role in roles}
    for role in roles:
        cluster.kill(role)
    for role in roles:
        cluster.wait_serving(role, after_restarts=before[role] + 1)


def recovery_lines(cluster: LocalCluster) -> list[str]:
    """Return the lines of `ponor up` about recoveries."""
    return [line for line in Path(cluster.output).read_text().splitlines() if "recover" in line]


def put_class_requests(cluster: LocalCluster) -> float:
    """Count PUT-class requests of the broker since its start."""
    return cluster.metric("broker", "ponor_object_store_requests_total", {"class": "put"})


def bytes_read_from_store(cluster: LocalCluster) -> float:
    """Count bytes that the broker read from the object store since its start."""
    return cluster.metric("broker", "ponor_object_store_bytes_total", {"direction": "read"})
