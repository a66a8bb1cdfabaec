"""Share groups with the Java client: a member that takes steps, the start of a group, moves and kills of
brokers.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Self

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import places_of

from tests.e2e.load.cluster import LocalCluster
from tests.tools.java_programs import java_program_command, tool

VERSION: Final = "4.3.1"
CONFIGS: Final = "kafka.admin.ConfigCommand"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
STATES: Final = "__share_group_state"


class Member:
    """ShareSteps in a group."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, group: str) -> None:
        self._errors = directory / f"{group}.err"
        command = java_program_command("ShareSteps", VERSION, bootstrap, topic, group)
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Leave the group and release the records."""
        self._process.communicate()

    def take(self, step: str) -> str:
        """Take a step that succeeds; return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().rstrip()
        assert answer.startswith(f"done {step}"), (answer, self._errors.read_text()[-2_000:])
        return answer.removeprefix(f"done {step}").strip()


def begin_at_the_start(bootstrap: str, group: str) -> None:
    """Let a new group read its topics from their start, not from their end."""
    about = ("--bootstrap-server", bootstrap, "--entity-type", "groups", "--entity-name", group)
    tool(CONFIGS, *about, "--alter", "--add-config", "share.auto.offset.reset=earliest")


def move_everything(brokers: LocalCluster, *topics: str) -> None:
    """Move all partitions of topics to the next broker."""
    nodes = [row["node_id"] for row in brokers.describe()["processes"] if row["role"] == "broker"]
    with KafkaClient(brokers.bootstrap) as client:
        for topic in topics:
            for index, place in enumerate(places_of(client, [topic])):
                to = nodes[(nodes.index(place.leader_id) + 1) % len(nodes)]
                brokers.run("partition", "move", topic, str(index), "--to", str(to), "--wait")


def kill_leader(brokers: LocalCluster, topic: str) -> None:
    """Kill the leader of the first partition of a topic; wait until it serves again."""
    with KafkaClient(brokers.bootstrap) as client:
        leader = places_of(client, [topic])[0].leader_id
    (number,) = [
        row["id"]
        for row in brokers.describe()["processes"]
        if row["role"] == "broker" and row["node_id"] == leader
    ]
    restarts = brokers.process("broker", number)["restarts"]
    assert brokers.kill("broker", number)
    brokers.wait_serving("broker", number, after_restarts=restarts + 1)
