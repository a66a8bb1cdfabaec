"""Twenty Java share consumers on one partition, while members crash, brokers are killed, and the partition
and its coordinators move: each record is acknowledged once, or archived at its limit.

PONOR_SHARE_ROUNDS (20) is the number of faults, PONOR_SEED (17) their order.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.acceptance.share_history import ACCEPTED, ShareHistory
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.steady import wait_for
from tests.peers.artifacts import KAFKA, PeerMissingError, clients, program
from tests.tools.ecosystem import create_topic, end_offsets
from tests.tools.java_programs import java_program_command, tool
from tests.tools.share_groups import (
    GROUPS,
    STATES,
    VERSION,
    begin_at_the_start,
    kill_leader,
    move_everything,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

ROUNDS: Final = int(os.environ.get("PONOR_SHARE_ROUNDS", "20"))
SEED: Final = int(os.environ.get("PONOR_SEED", "17"))
PROCESSES: Final = 4
CONSUMERS: Final = 5
"""In each process."""
TOPIC: Final = "shared"
GROUP: Final = "workers"
OFFSETS: Final = "__consumer_offsets"
LIMIT: Final = 5
NEVER_ACCEPTED: Final = 250
"""Records at multiples of this offset are released until they are archived."""
RECORDS_PER_S: Final = 200
LOCK_MS: Final = 15_000
SETTINGS: Final = {
    "offsets_topic_partitions": 1,
    "share_state_topic_partitions": 1,
    "group_share_delivery_count_limit": LIMIT,
    "group_share_record_lock_duration_ms": LOCK_MS,
}
FAULTS: Final = ("crash", "kill", "kill state", "kill group", "move", "move state", "move group")


class Members:
    """Processes of share consumers, and their reports."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        words = [bootstrap, TOPIC, GROUP, str(CONSUMERS), str(NEVER_ACCEPTED)]
        self._command = java_program_command("ShareMembers", VERSION, *words)
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.crashes_ns: list[int] = []

    def start(self) -> None:
        """Start one process."""
        self._started += 1
        report, errors = (self._directory / f"{self._started}.{kind}" for kind in ("report", "err"))
        with report.open("wb") as output, errors.open("wb") as error_output:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=error_output
            )
        self._running.append(process)

    def crash(self) -> None:
        """Kill the oldest process; start another."""
        self._kill(self._running.pop(0))
        self.start()

    def stop(self) -> None:
        """Kill all."""
        while self._running:
            self._kill(self._running.pop())

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.crashes_ns.append(time.monotonic_ns())

    def lines(self) -> Iterator[str]:
        """Read all reports."""
        for number in range(1, self._started + 1):
            with (self._directory / f"{number}.report").open() as report:
                yield from report

    def is_working(self, since_ns: int) -> bool:
        """Whether an acknowledgement after a moment was confirmed."""
        words = (line.split() for line in self.lines() if line.endswith("\n"))
        return any(row[0] == ACCEPTED and len(row) > 2 and int(row[1]) > since_ns for row in words)


@contextmanager
def members_of(bootstrap: str, directory: Path) -> Iterator[Members]:
    members = Members(bootstrap, directory)
    try:
        for _ in range(PROCESSES):
            members.start()
        yield members
    finally:
        members.stop()


@contextmanager
def steady_records(bootstrap: str) -> Iterator[None]:
    """Write records until the end of the block; all are acknowledged then."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(1 / RECORDS_PER_S):
            producer.produce(TOPIC, bytes(100), partition=0)
            producer.poll(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
    assert producer.flush(300) == 0


def inflict(fault: str, brokers: LocalCluster, members: Members) -> None:
    kind, _, what = fault.partition(" ")
    topic = {"": TOPIC, "state": STATES, "group": OFFSETS}[what]
    if kind == "crash":
        members.crash()
    elif kind == "kill":
        kill_leader(brokers, topic)
    else:
        move_everything(brokers, topic)


def suffer(fault: str, brokers: LocalCluster, members: Members) -> None:
    """Inflict a fault, and wait until the members work again."""
    began_ns = time.monotonic_ns()
    inflict(fault, brokers, members)
    inflicted_ns = time.monotonic_ns()
    wait_for(lambda: members.is_working(inflicted_ns), f"acknowledged after: {fault}")
    print(f"{fault}: {(time.monotonic_ns() - began_ns) / 1e9:.1f} s with the fault", flush=True)


def is_final(bootstrap: str) -> bool:
    """Whether no record is left to deliver."""
    about = ("--bootstrap-server", bootstrap, "--describe", "--group", GROUP)
    rows = [line.split() for line in tool(GROUPS, *about, code=None).lines]
    return any(row[:3] == [GROUP, TOPIC, "0"] and row[4] == "0" for row in rows if len(row) > 4)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[LocalCluster]:
    try:
        program("javac", "a Java compiler")
        assert clients(VERSION).class_path
        assert KAFKA.class_path
    except PeerMissingError as error:
        pytest.skip(str(error))
    arguments = ["--brokers", "3", "--wal", "object"]
    with LocalCluster(tmp_path / "ponor", settings=SETTINGS, arguments=arguments) as cluster:
        yield cluster


def test_each_record_is_acknowledged_once_or_archived(brokers: LocalCluster, tmp_path: Path) -> None:
    bootstrap = brokers.bootstrap
    create_topic(bootstrap, TOPIC, 1)
    begin_at_the_start(bootstrap, GROUP)
    chance = random.Random(SEED)
    with members_of(bootstrap, tmp_path) as members:
        with steady_records(bootstrap):
            wait_for(lambda: members.is_working(0), "the members work")
            for number in range(ROUNDS):
                suffer(FAULTS[number % len(FAULTS)], brokers, members)
                time.sleep(chance.uniform(0.0, 2.0))
        wait_for(lambda: is_final(bootstrap), "each record is final")
        before = len(list(members.lines()))
        time.sleep(LOCK_MS / 1_000 + 5)
        assert len(list(members.lines())) == before, "a record was delivered after all were final"
        crashes_ns = list(members.crashes_ns)
    (end_offset,) = end_offsets(bootstrap, TOPIC, "read_uncommitted")
    judge(ShareHistory.read(members.lines()), end_offset, crashes_ns)


def judge(history: ShareHistory, end_offset: int, crashes_ns: list[int]) -> None:
    repeated = sum(len(events) > 1 for events in history.taken.values())
    archived = [offset for offset in range(end_offset) if not history.accepted[offset]]
    print(
        f"{end_offset:,} records, {repeated:,} delivered more than once, {len(archived):,} without a"
        f" confirmed acknowledgement, {len(history.doubtful):,} with a doubtful one"
    )
    found = history.anomalies(end_offset, LIMIT, crashes_ns)
    assert not found, (Counter(text.split(" ", 1)[1] for text in found), found[:20])
    never = range(0, end_offset, NEVER_ACCEPTED)
    assert not any(history.accepted[offset] for offset in never)
    assert len(never) > 1, "the run was too short"


GOOD: Final = """\
took 1 0:1 1:1 2:1
accepted 2 0:1 1:1
doubtful 2 2:1
took 3 2:2
"""


@pytest.mark.parametrize(
    ("lines", "crashes_ns", "anomaly"),
    [
        ("", [], ""),
        ("accepted 4 0:2\n", [], "0 was acknowledged 2 times"),
        ("took 4 0:2\n", [], "0 was delivered after its acknowledgement"),
        ("took 4 0:6\n", [], "0 was delivered 6 times, the limit is 5"),
        ("took 4 3:4\n", [], "3 is final after 4 deliveries without an acknowledgement"),
        ("took 4 3:5\n", [], ""),
        ("took 4 3:4\n", [3], "3 is final after 4 deliveries without an acknowledgement"),
        ("took 4 3:4\n", [5], ""),
        ("took 4 3:5\naccepted 5 3:5", [], ""),
    ],
)
def test_the_history_shows_anomalies(lines: str, crashes_ns: list[int], anomaly: str) -> None:
    end_offset = 4 if "3:" in lines else 3
    history = ShareHistory.read((GOOD + lines).splitlines(keepends=True))
    found = history.anomalies(end_offset, LIMIT, crashes_ns)
    assert anomaly in found if anomaly else not found
