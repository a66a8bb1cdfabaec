"""Java clients of seven years write and read each other's records: every codec, null keys and
values, headers, groups.
"""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.peers.artifacts import CLIENT_VERSIONS, PeerMissingError, clients, program
from tests.tools.java_programs import round_trip, round_trip_command, transactional

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS, PARTITIONS = 40, 3
EVERYTHING = len(CLIENT_VERSIONS) * len(CODECS) * RECORDS


@pytest.fixture(scope="session", autouse=True)
def java_clients() -> None:
    try:
        program("javac", "a Java compiler")
        for version in CLIENT_VERSIONS:
            assert clients(version).class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def written(ponor: str) -> dict[tuple[int, int], str]:
    """Every version has written with every codec; returns the expected record at each (partition, offset)."""
    expected: dict[tuple[int, int], str] = {}
    for version in CLIENT_VERSIONS:
        for codec in CODECS:
            words = (ponor, "round-trip", version, codec, str(RECORDS), str(PARTITIONS))
            if not expected:
                _create(ponor)
            sent = [line.split() for line in round_trip(version, "produce", *words).lines]
            assert len(sent) == RECORDS
            for _, partition, offset, n in sent:
                place = int(partition), int(offset)
                assert place not in expected, "two records were given one offset"
                expected[place] = _line(*place, version, codec, int(n))
    return expected


def _create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("round-trip", PARTITIONS, 1)])["round-trip"].result(240)


def _line(partition: int, offset: int, writer: str, codec: str, n: int) -> str:
    key = "null" if n % 5 == 0 else f"key-{n}"
    value = "null" if n % 7 == 0 else f"value-{n}-é"
    return f"read {partition} {offset} {key} {value} writer={writer},codec={codec},n={n},nothing=null,"


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_every_version_writes_transactions(ponor: str, version: str) -> None:
    topic = f"transactions-{version}"
    admin = AdminClient({"bootstrap.servers": ponor})
    (made,) = admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values()
    made.result()
    transactional(version, ponor, topic, "commit", "abort", "commit", "abort", "abort", "commit")
    ended = ["2-commit", "3-abort", "4-commit", "5-abort", "6-abort", "7-commit"]
    for isolation, expected in (
        ("read_uncommitted", ended),
        ("read_committed", [one for one in ended if one.endswith("commit")]),
    ):
        assert _values(ponor, topic, isolation) == sorted(expected * PARTITIONS)


def _values(ponor: str, topic: str, isolation: str) -> list[str]:
    """Return the values of all partitions, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": ponor,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[str] = []
    ends = 0
    while ends < PARTITIONS:
        for message in consumer.consume(100, 1.0):
            if message.error() is None:
                found.append((message.value() or b"").decode())
            else:
                ends += 1
    consumer.close()
    return sorted(found)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_every_version_reads_the_records_of_every_version(
    ponor: str, written: dict[tuple[int, int], str], version: str
) -> None:
    assert len(written) == EVERYTHING
    words = ("consume", ponor, "round-trip", f"readers-{version}", str(EVERYTHING), "20000")
    lines = [line for line in round_trip(version, *words).lines if line.startswith("read ")]
    assert sorted(lines) == sorted(written.values())
    for partition in range(PARTITIONS):
        offsets = [int(line.split()[2]) for line in lines if line.split()[1] == str(partition)]
        assert offsets == sorted(offsets)


@pytest.mark.timeout(1_800)
def test_the_oldest_and_the_newest_share_a_group(ponor: str, written: dict[tuple[int, int], str]) -> None:
    words = ("consume", ponor, "round-trip", "mixed-group", str(EVERYTHING), "5000")
    members = [
        subprocess.Popen(round_trip_command(version, *words), stdout=subprocess.PIPE, text=True)
        for version in (CLIENT_VERSIONS[0], CLIENT_VERSIONS[-1])
    ]
    outputs = [member.communicate(timeout=900)[0].splitlines() for member in members]
    assert [member.returncode for member in members] == [0, 0]
    read = {line for lines in outputs for line in lines if line.startswith("read ")}
    assert read == set(written.values())
    assert all(any(line.startswith("assigned ") for line in lines) for lines in outputs)


@pytest.mark.timeout(1_800)
def test_a_group_continues_where_another_version_committed(
    ponor: str, written: dict[tuple[int, int], str]
) -> None:
    assert written
    group = f"readers-{CLIENT_VERSIONS[0]}"
    newest = CLIENT_VERSIONS[-1]
    more = round_trip(newest, "produce", ponor, "round-trip", newest, "lz4", "6", str(PARTITIONS)).lines
    lines = round_trip(newest, "consume", ponor, "round-trip", group, "6", "20000").lines
    read = sorted(tuple(line.split()[1:3]) for line in lines if line.startswith("read "))
    assert read == sorted(tuple(line.split()[1:3]) for line in more)
