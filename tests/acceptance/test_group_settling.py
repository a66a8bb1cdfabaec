"""Fifty members over five hundred partitions join, leave, crash and restart, on Ponor and on a real Kafka.

The time until the group is stable is printed, not asserted. Asserted for both: the group becomes
stable, every partition has one owner, static members restart without a rebalance.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.acceptance.group_members import Member
from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import PeerMissingError
from tests.peers.kafka_peer import KafkaPeer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MEMBERS: Final = 50
PARTITIONS: Final = 500
SETTLE_S_MAX: Final = 120.0
TOPIC: Final = "wide"


class Team:
    """The members of one group, and a stopwatch."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self.members: list[Member] = []
        self.settled_s: dict[str, float] = {}

    def add(self, count: int, *, static: bool = False) -> None:
        first = len(self.members)
        self.members += [
            self.member(f"c{n}", f"i{n}" if static else None) for n in range(first, first + count)
        ]

    def member(self, name: str, instance_id: str | None) -> Member:
        return Member(self._bootstrap, self._group, TOPIC, name, PARTITIONS, instance_id)

    def take(self, count: int) -> list[Member]:
        """Members that will leave."""
        gone, self.members = self.members[:count], self.members[count:]
        return gone

    @property
    def is_settled(self) -> bool:
        """Whether all are in one generation and every partition has one owner."""
        if len({member.generation for member in self.members}) > 1:
            return False
        if any(member.share is None for member in self.members):
            return False
        owned = sorted(partition for member in self.members for partition in member.share or ())
        return owned == list(range(PARTITIONS))

    async def settle(self, what: str) -> None:
        start = time.monotonic()
        while not self.is_settled:
            for member in self.members:
                if member.task.done():
                    member.task.result()
            assert time.monotonic() < start + SETTLE_S_MAX, f"{what}: not stable"
            await asyncio.sleep(0.01)
        self.settled_s[what] = time.monotonic() - start

    async def end(self) -> None:
        for member in self.members:
            member.die()
        await asyncio.gather(*(member.task for member in self.members), return_exceptions=True)


async def come_and_go(bootstrap: str) -> dict[str, float]:
    """Dynamic members."""
    team = Team(bootstrap, "dynamic")
    try:
        team.add(MEMBERS // 2)
        await team.settle(f"{MEMBERS // 2} members join an empty group")
        team.add(MEMBERS // 2)
        await asyncio.sleep(0.05)
        await team.settle(f"{MEMBERS // 2} more join")
        await asyncio.gather(*(member.leave() for member in team.take(10)))
        await team.settle("10 members leave")
        for member in team.take(10):
            member.die()
        generation = team.members[0].generation
        while team.members[0].generation == generation:  # until their sessions time out
            await asyncio.sleep(0.01)
        await team.settle("10 members die, after their sessions")
    finally:
        await team.end()
    return team.settled_s


async def restart_one_by_one(bootstrap: str) -> dict[str, float]:
    """Static members."""
    team = Team(bootstrap, "static")
    try:
        team.add(MEMBERS, static=True)
        await team.settle(f"{MEMBERS} static members join")
        generation = team.members[0].generation
        before = {member.instance_id: member.share for member in team.members}
        start = time.monotonic()
        for number, member in enumerate(team.members):
            member.die()
            team.members[number] = again = team.member(member.name, member.instance_id)
            while again.share is None:
                assert not again.task.done(), again.task.result()
                await asyncio.sleep(0.005)
        team.settled_s[f"{MEMBERS} static members restart one by one"] = time.monotonic() - start
        await team.settle("and then")
        assert {member.instance_id: member.share for member in team.members} == before
        assert {member.generation for member in team.members} == {generation}, "there was a rebalance"
    finally:
        await team.end()
    return team.settled_s


def measure(bootstrap: str, pid: int) -> dict[str, float]:
    """Run everything; return the CPU seconds of the broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)], operation_timeout=60)[TOPIC].result(90)
    time.sleep(2.0)  # both brokers open partitions after they answer
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    figures = {**asyncio.run(come_and_go(bootstrap)), **asyncio.run(restart_one_by_one(bootstrap))}
    figures["CPU of the broker"] = sum(process.cpu_times()[:2]) - before
    return figures


@contextmanager
def ponor_broker(directory: Path) -> Iterator[tuple[str, int]]:
    with LocalCluster(directory) as cluster:
        yield cluster.bootstrap, int(cluster.process("broker")["pid"])


@contextmanager
def kafka_broker(directory: Path) -> Iterator[tuple[str, int]]:
    with KafkaPeer(directory, settings={"group.initial.rebalance.delay.ms": 3_000}, heap="512m") as kafka:
        yield kafka.bootstrap, kafka.pid


def test_fifty_members_become_stable_as_in_kafka(tmp_path: Path) -> None:
    with ponor_broker(tmp_path / "ponor") as (bootstrap, pid):
        ours = measure(bootstrap, pid)
    theirs: Mapping[str, float] = {}
    try:
        with kafka_broker(tmp_path / "kafka") as (bootstrap, pid):
            theirs = measure(bootstrap, pid)
    except PeerMissingError as error:
        sys.stdout.write(f"\nwithout a real Kafka beside it: {error}")
    sys.stdout.write(
        f"\n{'seconds, ' + str(PARTITIONS) + ' partitions':45} {'Ponor':>8} {'Kafka 4.3.1':>12}\n"
    )
    for what, seconds in ours.items():
        beside = f"{theirs[what]:12.2f}" if what in theirs else f"{'-':>12}"
        sys.stdout.write(f"{what:45} {seconds:8.2f} {beside}\n")
    assert set(theirs) in (set(), set(ours))
