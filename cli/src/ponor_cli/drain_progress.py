"""Tells how far a draining broker is, while the supervisor waits for its end: what it still leads, as the other brokers see it."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ponor_cli.cluster_file import ClusterFile
from ponor_cli.control import ControlRequest, send_control
from ponor_cli.directory import ClusterDirectory
from ponor_cli.errors import CommandError
from ponor_cli.kafka_client import KafkaClient
from ponor_cli.reassignments import places_of

GLANCE_S = 0.5


def send_with_progress(directory: ClusterDirectory, request: ControlRequest, timeout_s: float) -> str:
    """`send_control` for a broker, with a line on standard error whenever it leads fewer partitions.

    Raises:
        CommandError: as `send_control`.
    """
    cluster = ClusterFile.read(directory)
    entry = cluster.process(request.role, request.number)
    own = entry.addresses.get("kafka")
    others = ",".join(address for address in cluster.bootstrap.split(",") if address != own)
    with ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(send_control, directory, request, timeout_s)
        if others:
            _tell(answer, others, entry.node_id)
        return answer.result()


def _tell(answer: Future[str], others: str, node_id: int) -> None:
    told: int | None = None
    while not wait([answer], GLANCE_S).done:
        left = _led_by(others, node_id)
        if left is not None and left != told:
            told = left
            print(f"broker {node_id} still leads {left} partitions", file=sys.stderr, flush=True)


def _led_by(bootstrap: str, node_id: int) -> int | None:
    """None where nobody could be asked: progress is a courtesy, the answer decides."""
    try:
        with KafkaClient(bootstrap) as client:
            return sum(place.leader_id == node_id for place in places_of(client, None))
    except CommandError:
        return None
