"""Read, process, write by Java clients of seven years: records and offsets of a transaction become visible
together, and a client that was replaced commits nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import places_of

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import CLIENT_VERSIONS, PeerMissingError, clients, program
from tests.tools.ecosystem import (
    PATIENCE_S,
    create_topic,
    end_offsets,
    group_offsets,
    read_records,
    wait_no_open_transactions,
    write_lines,
)
from tests.tools.java_programs import java_program_command

pytestmark = pytest.mark.timeout(1_800)
SESSION_MS, SHORT_SESSION_MS = "120000", "6000"
LINES = [f"line {number}" for number in range(8)]


@pytest.fixture(scope="session", autouse=True)
def java_clients() -> None:
    try:
        program("javac", "a Java compiler")
        for version in CLIENT_VERSIONS:
            assert clients(version).class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


class Client:
    """ReadProcessWrite with one version of the client."""

    def __init__(self, directory: Path, version: str, *words: str) -> None:
        self._errors = directory / f"{words[-1]}.err"
        command = java_program_command("ReadProcessWrite", version, *words)
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def take(self, *steps: str) -> None:
        """Take steps that succeed."""
        for step in steps:
            answer = self.answer(step)
            assert answer == f"done {step}", (answer, self._errors.read_text()[-2_000:])

    def answer(self, step: str) -> str:
        """Take a step; return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process meanwhile."""
        os.kill(self._process.pid, signal.SIGSTOP)
        yield
        os.kill(self._process.pid, signal.SIGCONT)


def prepare(ponor: str, name: str) -> tuple[str, str, str]:
    """Create the topics, and fill the first; return their names and that of the group."""
    for topic in (f"{name}-in", f"{name}-out"):
        create_topic(ponor, topic, 1)
    write_lines(ponor, f"{name}-in", LINES)
    return f"{name}-in", f"{name}-out", f"{name}-group"


def values(ponor: str, topic: str) -> list[str]:
    return [value for _, value in read_records(ponor, topic)]


def wait_ended(ponor: str, topic: str, group: str, source: str, offset: int) -> None:
    """Wait until a topic has no open transaction and a group has this offset."""
    wait_no_open_transactions(ponor, topic)
    deadline = time.monotonic() + PATIENCE_S
    while group_offsets(ponor, group, source) != {0: offset}:
        assert time.monotonic() < deadline, f"{group} does not get to offset {offset}"
        time.sleep(0.1)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_records_and_offsets_become_visible_together(ponor: str, version: str, tmp_path: Path) -> None:
    source, result, group = prepare(ponor, f"together-{version}")
    words = (ponor, source, result, group, SESSION_MS, f"together-{version}")
    with Client(tmp_path, version, *words) as client:
        client.take("init", "begin 3", "offsets")
        assert sum(end_offsets(ponor, result, "read_uncommitted")) == 3
        assert (values(ponor, result), group_offsets(ponor, group, source)) == ([], {})
        client.take("commit")
        wait_ended(ponor, result, group, source, 3)
        client.take("begin 2", "offsets", "abort")
        assert (values(ponor, result), group_offsets(ponor, group, source)) == (LINES[:3], {0: 3})
        client.take("begin 4", "offsets")
        # Another client with its transactional id aborts its transaction.
        with Client(tmp_path, version, *words[:3], f"{group}-2", *words[4:]) as other:
            other.take("init")
            failed = client.answer("commit")
            assert failed in {
                "failed commit ProducerFencedException",
                "failed commit InvalidProducerEpochException",
            }
            other.take("begin 1", "offsets", "commit")
            wait_ended(ponor, result, f"{group}-2", source, 1)
    assert group_offsets(ponor, group, source) == {0: 3}
    assert values(ponor, result) == [*LINES[:3], LINES[0]]


@pytest.mark.parametrize("version", CLIENT_VERSIONS[1:])
def test_a_member_that_was_replaced_commits_no_offsets(ponor: str, version: str, tmp_path: Path) -> None:
    source, result, group = prepare(ponor, f"replaced-{version}")
    words = (ponor, source, result, group)
    with (
        Client(tmp_path, version, *words, SHORT_SESSION_MS, f"{group}-first") as first,
        Client(tmp_path, version, *words, SESSION_MS, f"{group}-second") as second,
    ):
        first.take("init", "begin 5")
        with first.stopped():
            # It gets the partition when the session of the first ends.
            second.take("init", "begin 8", "offsets", "commit")
        assert first.answer("offsets") == "failed offsets CommitFailedException"
        first.take("abort")
    wait_ended(ponor, result, group, source, 8)
    assert values(ponor, result) == LINES


def test_open_transactions_survive_kills_and_moves_of_all_brokers(
    brokers: LocalCluster, tmp_path: Path
) -> None:
    bootstrap = brokers.bootstrap
    names = {version: prepare(bootstrap, f"kept-{version}") for version in CLIENT_VERSIONS}
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(tmp_path, version, bootstrap, *words, SESSION_MS, words[-1]))
            for version, words in names.items()
        ]

        def take(*steps: str) -> None:
            for client in clients:
                client.take(*steps)

        take("init", "begin 3")
        _restart(brokers, 0)
        take("offsets")
        _restart(brokers, 1)
        _restart(brokers, 2)
        take("commit", "begin 2")
        _move_everything(brokers, names.values())
        take("offsets")
        _move_everything(brokers, names.values())
        take("abort", "begin 5")
        _move_everything(brokers, names.values())
        take("offsets", "commit")
    for source, result, group in names.values():
        wait_ended(bootstrap, result, group, source, len(LINES))
        assert values(bootstrap, result) == LINES


def _restart(brokers: LocalCluster, number: int) -> None:
    restarts = brokers.process("broker", number)["restarts"]
    assert brokers.kill("broker", number)
    brokers.wait_serving("broker", number, after_restarts=restarts + 1)


def _move_everything(brokers: LocalCluster, names: Iterable[tuple[str, str, str]]) -> None:
    """Move the output, the coordinators and the offsets to other brokers."""
    results = [result for _, result, _ in names]
    nodes = [row["node_id"] for row in brokers.describe()["processes"] if row["role"] == "broker"]
    with KafkaClient(brokers.bootstrap) as client:
        for topic in (*results, "__transaction_state", "__consumer_offsets"):
            for index, place in enumerate(places_of(client, [topic])):
                to = nodes[(nodes.index(place.leader_id) + 1) % len(nodes)]
                brokers.run("partition", "move", topic, str(index), "--to", str(to))
