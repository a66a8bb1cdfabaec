"""The measured systems: Ponor and a real Apache Kafka behind one interface, pinned to the same core.

CPU time is that of all processes of a system: Kafka's single process (broker and controller);
Ponor's broker, controller, garbage collector and supervisor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import psutil

from tests.e2e.load.cluster import LocalCluster
from tests.peers.kafka_peer import KafkaPeer

SUBJECT_CORE: Final = 0
GENERATOR_CORE: Final = 1
KAFKA_JVM_FLAGS: Final = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""Options of the start script in Kafka's release."""


class Subject(Protocol):
    """One running system under load."""

    @property
    def name(self) -> str:
        """A name for tables."""
        ...

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        ...

    def cpu_seconds(self) -> float:
        """User and system time of all processes so far."""
        ...

    def broker_rss_bytes(self) -> int:
        """Resident memory of the process that serves clients."""
        ...

    def topic_configs(self) -> Mapping[str, str]:
        """Settings of the benchmark's topics, so that deleted data is removed soon."""
        ...


class PonorSubject:
    """`ponor up` on a directory, with the directory store."""

    def __init__(self, cluster: LocalCluster, name: str = "ponor") -> None:
        self._cluster = cluster
        self.name = name

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def cluster(self) -> LocalCluster:
        """For features of Ponor only."""
        return self._cluster

    def pids(self) -> dict[str, int]:
        """Process ids by role."""
        return {entry["role"]: int(entry["pid"]) for entry in self._cluster.describe()["processes"]}

    def cpu_seconds(self) -> float:
        return sum(_cpu_seconds(pid) for pid in self.pids().values())

    def broker_rss_bytes(self) -> int:
        return int(psutil.Process(self.pids()["broker"]).memory_info().rss)

    def topic_configs(self) -> Mapping[str, str]:
        return {}


class KafkaSubject:
    """Apache Kafka, one node, with the configuration of its release: no sync before the response."""

    name = "kafka"

    def __init__(self, peer: KafkaPeer) -> None:
        self._peer = peer

    @property
    def bootstrap(self) -> str:
        return self._peer.bootstrap

    def cpu_seconds(self) -> float:
        return self._peer.cpu_s()

    def broker_rss_bytes(self) -> int:
        return self._peer.rss_bytes()

    def topic_configs(self) -> Mapping[str, str]:
        return {"file.delete.delay.ms": "1000"}


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin processes started in this context, with all their threads, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core} & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def ponor_subject(
    directory: Path,
    settings: Mapping[str, object] | None = None,
    *,
    name: str = "ponor",
    checkout: Path | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[PonorSubject]:
    """Start a new Ponor on the systems' core, from another checkout's `.venv` if given.

    `arguments`: options of `ponor up`.
    """
    cluster = LocalCluster(
        directory,
        # Data of deleted topics is removed between two rounds, as in Kafka.
        settings={"destroy_delay_ms": 2_000, **(settings or {})},
        arguments=arguments,
        command=None if checkout is None else str(checkout / ".venv/bin/ponor"),
    )
    with on_core(SUBJECT_CORE):
        cluster.start()
    try:
        yield PonorSubject(cluster, name)
    finally:
        cluster.stop()


@contextmanager
def kafka_subject(directory: Path, settings: Mapping[str, object] | None = None) -> Iterator[KafkaSubject]:
    """Start a new Apache Kafka on the systems' core."""
    with KafkaPeer(directory, settings=settings, cpus={SUBJECT_CORE}, jvm_flags=KAFKA_JVM_FLAGS) as peer:
        yield KafkaSubject(peer)
