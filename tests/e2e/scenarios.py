"""What a judge would do to a running cluster, with sizes as parameters.

`tests/e2e` runs these small, as part of `make test`; `tests/acceptance` runs them at the sizes that the project promises.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.judge import Acknowledged, judge
from tests.e2e.load.producers import CLIENT_FAMILIES, COMPRESSIONS, Assignment, Report, produce
from tests.e2e.load.readers import read_all


def spawn_pool(workers: int) -> ProcessPoolExecutor:
    """Processes for clients; spawned, because client libraries have threads that a fork would break."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def create_topic(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """With the project's own command."""
    cluster.run("topic", "create", topic, "--partitions", str(partitions))


def collect(acknowledged: Acknowledged, runs: Iterable[tuple[str, Future[list[Report]]]]) -> None:
    """Add every producer's delivery reports."""
    for producer, future in runs:
        for number, partition, offset in future.result():
            acknowledged.add(producer, number, partition, offset)


def produce_mixed(cluster: LocalCluster, topic: str, *, records: int, partitions: int) -> Acknowledged:
    """Every client family with every compression, three at a time."""
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
    """Every family reads everything without a group; each must see the truth."""
    for family in families:
        seen = read_all(family, cluster.bootstrap, topic, partitions)
        judge(acknowledged, seen)
        print(f"{family}: {seen.count} records equal, in order, none twice")


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
    """Idempotent producers at a steady rate live through kills; each entry of `kills` names the roles that die at the same moment."""
    chance = random.Random(seed)
    stop_file = cluster.directory / "stop-producing"
    stop_file.unlink(missing_ok=True)
    families = [CLIENT_FAMILIES[index % 2] for index in range(producers)]
    acknowledged = Acknowledged()
    started: list[Path] = []
    with spawn_pool(producers) as pool:
        runs = []
        for index, family in enumerate(families):
            name = f"{family}-{index}-{seed}"
            rate = rate_bytes / producers
            work = Assignment(
                cluster.bootstrap,
                topic,
                name,
                0,
                10_000_000,
                partitions,
                COMPRESSIONS[index % 5],
                rate,
                str(stop_file),
            )
            runs.append((name, pool.submit(produce, family, work)))
            started.append(work.started_file)
        _wait_until_all(started, [future for _, future in runs])
        for roles in kills:
            _kill_and_wait(cluster, roles)
            time.sleep(chance.uniform(*pause_s))
        stop_file.touch()
        collect(acknowledged, runs)
    assert acknowledged.places, "the producers sent nothing"
    return acknowledged


def _wait_until_all(started: list[Path], runs: list[Future[list[Report]]]) -> None:
    while not all(path.exists() for path in started):
        for run in runs:
            if run.done():
                run.result()
        time.sleep(0.05)


def _kill_and_wait(cluster: LocalCluster, roles: tuple[str, ...]) -> None:
    before = {role: cluster.process(role)["restarts"] for role in roles}
    for role in roles:
        cluster.kill(role)
    for role in roles:
        cluster.wait_serving(role, after_restarts=before[role] + 1, timeout_s=120)


def recovery_lines(cluster: LocalCluster) -> list[str]:
    """What `ponor up` said about recoveries."""
    return [line for line in Path(cluster.output).read_text().splitlines() if "recover" in line]


def put_class_requests(cluster: LocalCluster) -> float:
    """PUT-class requests of the broker since its start."""
    return cluster.metric("broker", "ponor_object_store_requests_total", {"class": "put"})


def bytes_read_from_store(cluster: LocalCluster) -> float:
    """Bytes that the broker read from the object store since its start."""
    return cluster.metric("broker", "ponor_object_store_bytes_total", {"direction": "read"})
