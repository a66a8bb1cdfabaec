"""Current state of the processes of a local cluster, by `/readyz` of each."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ponor_cli.local.cluster_file import ClusterFile, ProcessEntry

ANSWER_S_MAX: Final = 2.0
CONCURRENCY_MAX: Final = 32


def describe_processes(cluster: ClusterFile) -> list[dict[str, Any]]:
    """Return a row per process. A process that is "serving" in `cluster.json` is not necessarily ready, and
    may fail to answer.
    """
    with ThreadPoolExecutor(max_workers=CONCURRENCY_MAX) as pool:
        states = pool.map(_state_now, cluster.processes)
    return [
        {
            "role": entry.role,
            "id": entry.id,
            "node_id": entry.node_id,
            "state": state,
            "pid": entry.pid,
            "restarts": entry.restarts,
            "metrics_url": entry.metrics_url,
        }
        for entry, state in zip(cluster.processes, states, strict=True)
    ]


def _state_now(entry: ProcessEntry) -> str:
    address = entry.addresses.get("metrics")
    if entry.state != "serving" or address is None:
        return entry.state
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException):
        return "not answering"
    finally:
        connection.close()
    if answer.status == http.client.OK:
        return entry.state
    return f"not ready ({'; '.join(text.split(chr(10))).rstrip('; ')})"
