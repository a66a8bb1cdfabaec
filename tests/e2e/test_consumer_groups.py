"""Consumer groups of three unmodified client families against real processes: joins, leaves, crashes,
restarts.

Every member is a process (`group_member.py`) that logs its commits. The rule: every record was committed
exactly once, by one member.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.e2e.group_member import MemberSpec
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("librdkafka", "aiokafka", "kafka-python")
PARTITIONS = 32
WAIT_S_MAX = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("groups")
    with LocalCluster(directory, settings={"group_initial_rebalance_delay_ms": 300}) as cluster:
        yield cluster


RECORDS_LEFT_MIN = 5_000
LONG_SESSION_MS = 180_000
"""Session timeout of members that must not expire: longer than a restart or a suspended process."""


class Member:
    """A running member and its log of commits."""

    def __init__(self, process: subprocess.Popen[bytes], spec: MemberSpec, output: Path) -> None:
        self.process = process
        self.spec = spec
        self.output = output

    def events(self, name: str) -> list[dict[int, tuple[int, int]]]:
        path = Path(self.spec.log_file)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [
            {int(partition): (first, end) for partition, (first, end) in event["ranges"].items()}
            for event in events
            if event["event"] == name
        ]

    @property
    def committed(self) -> int:
        return sum(end - first for ranges in self.events("done") for first, end in ranges.values())

    def leave(self) -> None:
        """Leave the group, then exit."""
        Path(self.spec.stop_file).touch()
        assert self.process.wait(240) == 0, self.output.read_text()[-4_000:]
        assert self.events("left")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Team:
    """The members of one group over one topic whose records are `partition/offset`."""

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        name: str,
        records: int,
        *,
        records_per_commit_max: int = 100,
        wait_s_max: float = WAIT_S_MAX,
    ) -> None:
        self.records_per_commit_max = records_per_commit_max
        self.wait_s_max = wait_s_max
        self.cluster = cluster
        self.directory = directory
        self.topic = f"{name}-topic"
        self.group = f"{name}-group"
        self.records = records
        self.members: list[Member] = []
        create_topic(cluster, self.topic, PARTITIONS)
        self.produced = 0
        self.produce(records)

    def produce(self, records: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True, "log_level": 2}
        )
        for number in range(self.produced, self.produced + records):
            partition, offset = number % PARTITIONS, number // PARTITIONS
            producer.produce(self.topic, f"{partition}/{offset}".encode(), partition=partition)
            if number % 5_000 == 0:
                producer.flush(240)
        assert producer.flush(240) == 0
        self.produced += records

    def join(
        self,
        family: str,
        *,
        instance_id: str | None = None,
        pause_s: float = 0.02,
        session_timeout_ms: int = 6_000,
    ) -> Member:
        name = f"{len(self.members)}-{family}"
        spec = MemberSpec(
            family=family,
            bootstrap=self.cluster.bootstrap,
            topic=self.topic,
            group=self.group,
            log_file=str(self.directory / f"{name}.jsonl"),
            stop_file=str(self.directory / f"{name}.stop"),
            instance_id=instance_id,
            pause_s=pause_s,
            session_timeout_ms=session_timeout_ms,
            records_per_commit_max=self.records_per_commit_max,
        )
        output = self.directory / f"{name}.out"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.group_member", spec.to_json()],
                cwd=ROOT,
                stdout=sink,
                stderr=sink,
            )
        member = Member(process, spec, output)
        self.members.append(member)
        return member

    @property
    def committed(self) -> int:
        return sum(member.committed for member in self.members)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.wait_s_max
        while not condition():
            for member in self.members:
                code = member.process.poll()
                assert code in {None, 0, -signal.SIGKILL}, (
                    f"{member.spec.family}: {member.output.read_text()[-4_000:]}"
                )
            assert time.monotonic() < deadline, f"{what}: {self.account()}"
            time.sleep(0.05)

    def wait_progress(self, member: Member, records: int = 50) -> None:
        """Wait until the member has committed some more records."""
        goal = member.committed + records

        def progressed() -> bool:
            # On a slow machine the others may commit everything while this one is still starting.
            if self.produced - self.committed < RECORDS_LEFT_MIN:
                self.produce(RECORDS_LEFT_MIN)
            return member.committed >= goal

        self.wait(progressed, f"{member.spec.family} does not commit {records} records more")

    def wait_all(self) -> None:
        """Wait until everything is committed, by the group's own offsets."""
        self.wait(lambda: sum(self.offsets().values()) >= self.produced, "some records are not committed")

    def offsets(self) -> dict[int, int]:
        """Return the group's committed offsets, as seen by a client outside the group."""
        reader = Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": self.group, "log_level": 2}
        )
        try:
            places = reader.committed([TopicPartition(self.topic, p) for p in range(PARTITIONS)], timeout=240)
        except KafkaException:
            return {}
        finally:
            reader.close()
        return {place.partition: max(0, place.offset) for place in places}

    def account(self) -> str:
        return ", ".join(f"{m.spec.family}: {m.committed} ({m.process.poll()})" for m in self.members)

    def judge(self, *, killed: tuple[Member, ...] = ()) -> None:
        """Check that every record was committed exactly once.

        A killed member may have committed without logging `done`.
        """
        times: Counter[tuple[int, int]] = Counter()
        for member in self.members:
            for ranges in member.events("done"):
                for partition, (first, end) in ranges.items():
                    times.update((partition, offset) for offset in range(first, end))
        twice = [place for place, count in times.items() if count > 1]
        assert not twice, f"{len(twice)} records were committed twice, such as {sorted(twice)[:5]}"
        every = {(number % PARTITIONS, number // PARTITIONS) for number in range(self.produced)}
        unsaid = {
            (partition, offset)
            for member in killed
            for ranges in member.events("intent")[-1:]
            for partition, (first, end) in ranges.items()
            for offset in range(first, end)
        }
        lost = every - times.keys() - unsaid
        assert not lost, f"{len(lost)} records were never committed, such as {sorted(lost)[:5]}"
        assert times.keys() <= every
        self.wait(lambda: len(self.offsets()) == PARTITIONS, "the group's offsets are not available")
        assert self.offsets() == {p: len(range(p, self.produced, PARTITIONS)) for p in range(PARTITIONS)}


@pytest.fixture
def team(cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Team]:
    name = request.node.name.replace("[", "-").replace("]", "")[:80]
    team = Team(cluster, tmp_path, name, 20_000)
    yield team
    for member in team.members:
        if member.process.poll() is None:
            member.kill()


def test_members_of_three_families_join_and_leave_one_group(team: Team) -> None:
    join_and_leave_politely(team)


def join_and_leave_politely(team: Team) -> None:
    """Run five members of three families that come and go, then check all their logs."""
    first = team.join("librdkafka")
    team.wait_progress(first)
    second = team.join("aiokafka")
    team.wait_progress(second)
    third = team.join("kafka-python")
    team.wait_progress(third)
    team.wait_progress(first)
    first.leave()
    team.wait_progress(second)
    team.wait_progress(third)
    fourth = team.join("librdkafka")
    third.leave()
    team.wait_progress(fourth)
    second.leave()
    fifth = team.join("kafka-python")
    team.wait_progress(fifth)
    team.wait_all()
    fourth.leave()
    fifth.leave()
    team.judge()


@pytest.mark.parametrize("family", FAMILIES)
def test_group_of_one_family_resumes_at_its_offsets(team: Team, family: str) -> None:
    members = [team.join(family), team.join(family)]
    for member in members:
        team.wait_progress(member)
    for member in members:
        member.leave()
    assert sum(team.offsets().values()) > 0
    # The last member may have committed everything while the other one left.
    team.produce(RECORDS_LEFT_MIN)
    members = [team.join(family) for _ in range(3)]
    for member in members:
        team.wait_progress(member)
    members[0].leave()
    team.wait_all()
    for member in members[1:]:
        member.leave()
    team.judge()


def test_killed_members_are_replaced_after_their_session_timeout(team: Team) -> None:
    survivor, victim, other_victim = team.join("librdkafka"), team.join("aiokafka"), team.join("kafka-python")
    for member in (survivor, victim, other_victim):
        team.wait_progress(member)
    victim.kill()
    other_victim.kill()
    team.wait_all()
    survivor.leave()
    team.judge(killed=(victim, other_victim))


def member_ids(team: Team) -> set[str]:
    """Use a new client each time: after losing its only broker, librdkafka 2.16 caches a dead coordinator
    handle for 30 s."""
    admin = AdminClient({"bootstrap.servers": team.cluster.bootstrap, "log_level": 2})
    description = admin.describe_consumer_groups([team.group])[team.group].result(240)
    return {member.member_id for member in description.members}


def test_group_survives_a_broker_crash_without_a_rebalance(team: Team) -> None:
    # Longer than the outage: a client that waits longer than its session timeout leaves by itself.
    members = [
        team.join(family, pause_s=0.05, session_timeout_ms=LONG_SESSION_MS)
        for family in ("librdkafka", "aiokafka", "kafka-python")
    ]
    for member in members:
        team.wait_progress(member)
    admin = AdminClient({"bootstrap.servers": team.cluster.bootstrap, "log_level": 2})
    before = {
        m.member_id for m in admin.describe_consumer_groups([team.group])[team.group].result(240).members
    }
    assert len(before) == 3
    restarts = team.cluster.process("broker")["restarts"]
    team.cluster.kill("broker")
    team.cluster.wait_serving("broker", after_restarts=restarts + 1)
    for member in members:
        team.wait_progress(member)
    assert member_ids(team) == before
    team.wait_all()
    for member in members:
        member.leave()
    team.judge()


def test_static_member_keeps_its_partitions_across_a_restart(team: Team) -> None:
    # The session outlasts the restart; on a busy machine a process takes seconds to start.
    stays = team.join("librdkafka", instance_id="left", session_timeout_ms=LONG_SESSION_MS)
    restarts = team.join("librdkafka", instance_id="right", session_timeout_ms=LONG_SESSION_MS)
    team.wait_progress(stays)
    team.wait_progress(restarts)
    admin = AdminClient({"bootstrap.servers": team.cluster.bootstrap, "log_level": 2})

    def assignment() -> dict[str, set[int]]:
        description = admin.describe_consumer_groups([team.group])[team.group].result(240)
        return {
            m.group_instance_id: {place.partition for place in m.assignment.topic_partitions}
            for m in description.members
        }

    before = assignment()
    assert set(before) == {"left", "right"}
    restarts.leave()
    again = team.join("librdkafka", instance_id="right", session_timeout_ms=LONG_SESSION_MS)
    team.wait_progress(again)
    assert assignment() == before
    touched = {partition for ranges in again.events("done") for partition in ranges}
    assert touched <= before["right"]
    team.wait_all()
    stays.leave()
    again.leave()
    team.judge()


def test_tools_list_and_manage_groups(cluster: LocalCluster) -> None:
    create_topic(cluster, "tools", 4)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    note = "what the client wrote down, é"
    place = TopicPartition("tools", 2, 7, note)
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "tooled", "log_level": 2})
    assert reader.commit(offsets=[place], asynchronous=False) is not None
    (committed,) = reader.committed([TopicPartition("tools", 2)], timeout=240)
    assert (committed.offset, committed.metadata) == (7, note)
    reader.close()

    listed = {group.group_id: group for group in admin.list_consumer_groups().result(240).valid}
    assert listed["tooled"].state == ConsumerGroupState.EMPTY
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("tooled")])["tooled"].result(
        240
    )
    assert [(p.topic, p.partition, p.offset) for p in offsets.topic_partitions] == [("tools", 2, 7)]
    moved = ConsumerGroupTopicPartitions(
        "tooled", [TopicPartition("tools", 2, 3), TopicPartition("tools", 0, 1)]
    )
    admin.alter_consumer_group_offsets([moved])["tooled"].result(240)
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("tooled")])["tooled"].result(
        240
    )
    assert sorted((p.partition, p.offset) for p in offsets.topic_partitions) == [(0, 1), (2, 3)]

    admin.delete_consumer_groups(["tooled"])["tooled"].result(240)
    with pytest.raises(KafkaException) as gone:
        admin.delete_consumer_groups(["tooled"])["tooled"].result(240)
    assert gone.value.args[0].name() == "GROUP_ID_NOT_FOUND"
    assert "tooled" not in {group.group_id for group in admin.list_consumer_groups().result(240).valid}
