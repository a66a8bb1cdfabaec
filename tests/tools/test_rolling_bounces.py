"""A group whose members are replaced one after the other: classic, then consumer, then classic again.

Each client commits what it reads. No committed range may be missing or repeated.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.peers.artifacts import PeerMissingError, clients, program
from tests.tools.ecosystem import create_topic, end_offsets, group_offsets
from tests.tools.java_programs import java_program_command
from tests.tools.test_go_client import built

__all__ = ["built"]  # the fixture

pytestmark = pytest.mark.timeout(1_800)
PARTITIONS: Final = 6
MEMBERS: Final = 3
WAIT_S_MAX: Final = 300.0
PROTOCOLS: Final = ("classic", "consumer", "classic")

Command = Callable[[str], Sequence[str]]
"""Return the command of a member for a protocol."""


class Member:
    """One process of a group."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.protocol = command[-1]
        self.lines: list[str] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    @property
    def partitions(self) -> list[str]:
        """The partitions of the last assignment."""
        found = [line.split()[1:] for line in self.lines if line.startswith("assigned")]
        return found[-1] if found else []

    def committed(self) -> list[tuple[int, int, int]]:
        """Return the committed ranges: partition, first offset, end."""
        rows = [line.split()[1:] for line in self.lines if line.startswith("committed")]
        return [(int(partition), int(begin), int(end)) for partition, begin, end in rows]

    def leave(self) -> None:
        """Commit and leave the group."""
        assert self._process.stdin is not None
        self._process.stdin.write("leave\n")
        self._process.stdin.close()
        assert self._process.wait(WAIT_S_MAX) == 0, self._log.read_text()[-3_000:]
        self._reader.join()
        assert "leaving" in self.lines


@contextmanager
def written(bootstrap: str, topic: str) -> Iterator[None]:
    """Write records to all partitions meanwhile."""
    producer = Producer({"bootstrap.servers": bootstrap})
    stopping = threading.Event()

    def write() -> None:
        for number in itertools.count():
            producer.produce(topic, b"x", partition=number % PARTITIONS)
            producer.poll(0)
            if stopping.wait(0.005):
                break
        assert producer.flush(WAIT_S_MAX) == 0

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_balanced(members: Sequence[Member]) -> bool:
    """Whether each partition has one owner, and each member has its share."""
    held = sorted(partition for member in members for partition in member.partitions)
    return held == [str(index) for index in range(PARTITIONS)] and all(
        len(member.partitions) == PARTITIONS // len(members) for member in members
    )


def group_type(bootstrap: str, group: str) -> str:
    """Return `classic` or `consumer`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its futures end only while it exists
    described = admin.describe_consumer_groups([group])
    return str(described[group].result(WAIT_S_MAX).type.name).lower()


def bounce(bootstrap: str, topic: str, group: str, commands: Sequence[Command], log: Path) -> list[Member]:
    """Replace the members one after the other, for each protocol; return all members."""
    everyone: list[Member] = []
    with ExitStack() as stack, written(bootstrap, topic):

        def start(command: Command, protocol: str) -> Member:
            member = stack.enter_context(Member(command(protocol), log))
            everyone.append(member)
            return member

        members = [start(command, PROTOCOLS[0]) for command in commands]
        wait_for(lambda: is_balanced(members), f"no balance: {[each.lines[-3:] for each in members]}")
        for protocol in PROTOCOLS[1:]:
            for place, command in enumerate(commands):
                members[place].leave()
                members[place] = start(command, protocol)
                wait_for(lambda: is_balanced(members), f"no balance: {[each.lines[-3:] for each in members]}")
                progress = [len(each.committed()) for each in members]
                wait_for(
                    lambda before=progress: all(  # type: ignore[misc]
                        len(each.committed()) > count for each, count in zip(members, before, strict=True)
                    ),
                    "a member does not commit",
                )
            assert group_type(bootstrap, group) == protocol
        for member in members:
            member.leave()
    return everyone


def judge(bootstrap: str, topic: str, group: str, everyone: Sequence[Member]) -> None:
    """Check that the committed ranges of each partition follow each other without gaps and overlaps."""
    assert not [line for member in everyone for line in member.lines if line.startswith("lost")]
    offsets, ends = group_offsets(bootstrap, group, topic), end_offsets(bootstrap, topic, "read_uncommitted")
    for partition in range(PARTITIONS):
        ranges = sorted(
            (begin, end) for each in everyone for index, begin, end in each.committed() if index == partition
        )
        assert ranges[0][0] == 0
        for (_, end), (begin, _) in itertools.pairwise(ranges):
            assert begin == end, f"partition {partition}: {begin} follows {end}"
        assert offsets[partition] == ranges[-1][1] <= ends[partition]


def java_member(version: str, *words: str) -> Command:
    try:
        program("javac", "a Java compiler")
        assert clients(version).class_path
    except PeerMissingError as error:
        pytest.skip(str(error))
    return lambda protocol: java_program_command("GroupMember", version, *words, protocol)


def librdkafka_member(*words: str) -> Command:
    script = str(Path(__file__).parent / "group_member.py")
    return lambda protocol: [sys.executable, script, *words, protocol]


def go_member(built: Path, *words: str) -> Command:
    return lambda protocol: [str(built), "member", *words, protocol]


@pytest.mark.parametrize("client", ["4.3.1", "4.4.0", "librdkafka", "franz-go"])
def test_members_change_the_protocol_and_back_without_a_lost_or_repeated_commit(
    ponor: str, client: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    topic, group = f"bounce-{client}", f"bounce-{client}-group"
    words = (ponor, topic, group)
    if client == "librdkafka":
        command = librdkafka_member(*words)
    elif client == "franz-go":
        command = go_member(request.getfixturevalue("built"), *words)
    else:
        command = java_member(client, *words)
    create_topic(ponor, topic, PARTITIONS)
    everyone = bounce(ponor, topic, group, [command] * MEMBERS, tmp_path / "errors")
    judge(ponor, topic, group, everyone)


def test_clients_of_two_libraries_share_a_group_through_the_change(ponor: str, tmp_path: Path) -> None:
    topic, group = "bounce-mixed", "bounce-mixed-group"
    words = (ponor, topic, group)
    commands = [java_member("4.4.0", *words), librdkafka_member(*words), java_member("4.3.1", *words)]
    create_topic(ponor, topic, PARTITIONS)
    everyone = bounce(ponor, topic, group, commands, tmp_path / "errors")
    judge(ponor, topic, group, everyone)
