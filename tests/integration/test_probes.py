"""Probes of real processes: a paused process answers none, a disconnected one gives the reason why
it is not ready, and a blocked loop is detected.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ponor_runtime.identity import ClusterOrdinal, compose_node_id

ORDINAL = ClusterOrdinal(1)
SETTLED_S_MAX = 240.0
SILENT = 0
"""Instead of an HTTP status: no answer."""


class Answer(NamedTuple):
    """The result of a probe."""

    status: int
    text: str


class Service:
    """A process with probes."""

    def __init__(self, role: str, root: Path, **config: Any) -> None:
        self.ready_file = root / f"{role}.ready"
        path = root / f"{role}.json"
        path.write_text(json.dumps({"ready_file": str(self.ready_file), "metrics": "127.0.0.1:0", **config}))
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"ponor_{role}", "--config", str(path)], stderr=subprocess.PIPE, text=True
        )

    @property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.ready_file.read_text())
        return content

    def address(self, role: str) -> str:
        until(self.ready_file.exists, self)
        return str(self.content["addresses"][role])

    def ask(self, path: str, timeout_s: float = 60.0) -> Answer:
        connection = http.client.HTTPConnection(self.address("metrics"), timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode())
        except TimeoutError:
            return Answer(SILENT, "")
        finally:
            connection.close()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


def until(condition: Callable[[], bool], service: Service) -> None:
    deadline = time.monotonic() + SETTLED_S_MAX
    while not condition():
        assert service.process.poll() is None, service.process.communicate()[1]
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


@contextmanager
def cluster(root: Path) -> Iterator[dict[str, Service]]:
    services: dict[str, Service] = {}
    try:
        services["controller"] = controller = Service(
            "controller",
            root,
            data=str(root / "controller"),
            listen="127.0.0.1:0",
            cluster_ordinal=ORDINAL,
            format=True,
            settings={"session_timeout_ms": 3_000},
        )
        common = {
            "controllers": [controller.address("session")],
            "object_store": f"file://{root / 'objects'}",
        }
        services["gc"] = Service("gc", root, node_id=compose_node_id(ORDINAL, 1_000), **common)
        services["broker"] = Service(
            "broker",
            root,
            node_id=compose_node_id(ORDINAL, 0),
            data=str(root / "broker"),
            wal="object",
            kafka_host="127.0.0.1",
            kafka_port=0,
            **common,
        )
        yield services
    finally:
        for service in services.values():
            service.end()


def test_a_paused_process_answers_no_probe_and_others_report_their_unmet_conditions(tmp_path: Path) -> None:
    with cluster(tmp_path) as services:
        for service in services.values():
            until(lambda one=service: one.ask("/readyz").status == 200, service)  # type: ignore[misc]
            assert service.ask("/livez") == (200, "live\n")
            assert service.content["ready"] is True

        broker, gc, controller = (services[name] for name in ("broker", "gc", "controller"))
        broker.process.send_signal(signal.SIGSTOP)
        assert broker.ask("/readyz", 1.0).status == broker.ask("/livez", 1.0).status == SILENT
        broker.process.send_signal(signal.SIGCONT)
        until(lambda: broker.ask("/readyz").status == 200, broker)

        controller.process.send_signal(signal.SIGSTOP)
        until(lambda: broker.ask("/readyz").status == 503, broker)
        until(lambda: "fence: " in broker.ask("/readyz").text, broker)
        until(lambda: "session: the leading controller has not been heard" in gc.ask("/readyz").text, gc)
        # No liveness failure, because a restart would not help.
        assert broker.ask("/livez").status == gc.ask("/livez").status == 200
        assert broker.content["ready"] is False
        assert "fence" in broker.content["unmet"]
