"""External view of a running cluster's controllers: the leader, and how long writes were unavailable."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_cli.commands.quorum import describe_quorum
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.metadata_clients import PAUSE_S, Call, MetadataLoad, run_metadata_clients
from tests.e2e.load.steady import spawn_pool, wait_for

ANSWER_S_MAX: Final = 120.0


def describe(cluster: LocalCluster) -> dict[str, Any]:
    """Like `ponor cluster quorum describe -o json`, without starting a process."""
    facts, members = describe_quorum(describe_at(cluster.describe()["controllers"]))
    return {**facts, "members": members}


def describe_at(controllers: Sequence[str]) -> wire.QuorumDescription:
    """Return the leader's view."""

    async def ask() -> wire.QuorumDescription:
        network = GrpcNetwork()
        try:
            request = wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))
            client = QuorumClient(network, SystemClock(), controllers)
            return (await client.ask(request, timeout_s=ANSWER_S_MAX)).description
        finally:
            await network.close()

    return asyncio.run(ask())


def leader(cluster: LocalCluster) -> dict[str, Any]:
    """Return the leader's entry in cluster.json."""
    node_id = describe(cluster)["leader"]
    entry: dict[str, Any] = next(row for row in cluster.describe()["processes"] if row["node_id"] == node_id)
    return entry


def kill_leader(cluster: LocalCluster) -> tuple[int, int]:
    """Send SIGKILL to the leader; return its number and the time."""
    entry = leader(cluster)
    at_ns = time.monotonic_ns()
    os.kill(entry["pid"], signal.SIGKILL)
    return entry["id"], at_ns


@dataclass(slots=True)
class MetadataHistory:
    """Histories of the clients, complete after the load has ended."""

    calls: list[Call] = field(default_factory=list)

    def gap_s(self, after_ns: int) -> float:
        """Time from a moment to the end of the first put that started after it."""
        ends = [
            call.end_ns
            for call in self.calls
            if call.kind == "put" and call.begin_ns >= after_ns and call.end_ns is not None
        ]
        assert ends, "no put succeeded afterwards"
        return (min(ends) - after_ns) / 1e9

    def outage_s(self, after_ns: int) -> float:
        """Longest time without the end of any put within five seconds after a moment."""
        until_ns = after_ns + 5_000_000_000
        ends = sorted(
            call.end_ns
            for call in self.calls
            if call.kind == "put" and call.end_ns is not None and after_ns <= call.end_ns <= until_ns
        )
        edges = [after_ns, *ends]
        return max(late - early for early, late in pairwise(edges)) / 1e9


def judge_puts(history: MetadataHistory) -> None:
    """Check that every key was created once and every client saw that value."""
    created: dict[str, Call] = {}
    for call in history.calls:
        if call.kind == "put" and call.created:
            assert call.key not in created, f"created twice: {created[call.key]} and {call}"
            assert call.held == call.value
            created[call.key] = call
    for call in history.calls:
        if call.kind == "put":
            assert call.key not in created or call.held == created[call.key].value, (
                f"{created[call.key]}, but {call}"
            )


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def shown(values: Sequence[float]) -> str:
    """Format median, 99th percentile and maximum."""
    return (
        f"median {statistics.median(values):.2f} s, p99 {percentile(values, 0.99):.2f} s, worst"
        f" {max(values):.2f} s"
    )


@contextmanager
def metadata_load(
    cluster: LocalCluster, *, clients: int, seed: int, pause_s: float = PAUSE_S
) -> Iterator[MetadataHistory]:
    """Run metadata clients for the duration of the block."""
    stop_file = cluster.directory / f"stop-metadata-{seed}"
    started_file = cluster.directory / f"metadata-started-{seed}"
    load = MetadataLoad(
        cluster.describe()["controllers"],
        clients,
        seed,
        str(stop_file),
        str(started_file),
        pause_s,
        cluster.ordinal,
    )
    history = MetadataHistory()
    with spawn_pool(1) as pool:
        running: Future[list[Call]] = pool.submit(run_metadata_clients, load)
        try:
            wait_for(lambda: running.done() or Path(started_file).exists(), "the metadata clients work")
            yield history
        finally:
            stop_file.touch()
        history.calls.extend(running.result())
