"""Three controllers on three machines (network namespaces): the leader's network is disconnected
and restored.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ponor_runtime.identity import ClusterOrdinal, compose_node_id

from tests.e2e.load.metadata_clients import MetadataLoad, run_metadata_clients
from tests.e2e.load.namespaces import Machine, machines, namespaces_are_allowed
from tests.e2e.load.quorum import MetadataHistory, describe_at, judge_puts, shown
from tests.e2e.load.register_history import judge_linearizable
from tests.e2e.load.steady import spawn_pool, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not namespaces_are_allowed(), reason="network namespaces need root and iproute2"),
]

SERVICE_PORT = 9090
PEER_PORT = 9091
ROUNDS = 3
CUT_S = 6.0


def test_a_disconnected_leader_is_replaced_and_returns(tmp_path: Path) -> None:
    with machines(3) as hosts, controllers(hosts, tmp_path) as addresses:
        stop, started = tmp_path / "stop", tmp_path / "started"
        load = MetadataLoad(addresses, 6, 9, str(stop), str(started))
        history, cuts = MetadataHistory(), []
        with spawn_pool(1) as pool:
            running = pool.submit(run_metadata_clients, load)
            wait_for(lambda: running.done() or started.exists(), "the metadata clients work")
            for _ in range(ROUNDS):
                time.sleep(2.0)
                leading = describe_at(addresses).leader_node_id
                host = next(host for number, host in enumerate(hosts) if node_id(number) == leading)
                cuts.append(time.monotonic_ns())
                host.cut()
                time.sleep(CUT_S)
                host.heal()
                wait_for(
                    lambda: everybody_has_everything(addresses), "the cut-off controller catches up", s_max=20
                )
                assert describe_at(addresses).leader_node_id != leading
            stop.touch()
            history.calls.extend(running.result())
        print(f"{ROUNDS} partitions: writable again after {shown([history.gap_s(at_ns) for at_ns in cuts])}")
        judge_puts(history)
        judge_linearizable(history.calls)


def node_id(number: int) -> int:
    """A controller's machine."""
    return compose_node_id(ClusterOrdinal(1), 3000 + number)


def everybody_has_everything(addresses: Sequence[str]) -> bool:
    """Whether every member was heard a moment ago and has nearly the whole log (the load continues)."""
    seen = describe_at(addresses)
    return all(
        member.silent_ms < 1000 and seen.last_index - member.match_index < 100 for member in seen.members
    )


@contextmanager
def controllers(hosts: Sequence[Machine], directory: Path) -> Iterator[list[str]]:
    """Run a controller on each machine; yield their service addresses."""
    voters = [
        {
            "node_id": node_id(number),
            "peer_address": f"{host.address}:{PEER_PORT}",
            "service_address": f"{host.address}:{SERVICE_PORT}",
        }
        for number, host in enumerate(hosts)
    ]
    processes = [_start(host, number, voters, directory) for number, host in enumerate(hosts)]
    try:
        yield [str(voter["service_address"]) for voter in voters]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def _start(
    host: Machine, number: int, voters: list[dict[str, Any]], directory: Path
) -> subprocess.Popen[bytes]:
    config = directory / f"controller-{number}.json"
    content = {
        "node_id": node_id(number),
        "data": str(directory / f"controller-{number}"),
        "listen": voters[number]["service_address"],
        "peer_listen": voters[number]["peer_address"],
        "cluster_ordinal": 1,
        "voters": voters,
        "format": True,
    }
    config.write_text(json.dumps(content))
    with (directory / f"controller-{number}.log").open("wb") as log:
        words = host.command(sys.executable, "-m", "ponor_controller", "--config", str(config))
        return subprocess.Popen(words, stdout=log, stderr=log)
