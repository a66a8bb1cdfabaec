"""`ponor topic produce` and `consume`, `ponor node add` and `remove`, as processes with pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.scenarios import create_topic

pytestmark = pytest.mark.e2e
NOW_MS = time.time_ns() // 1_000_000
"""Retention would delete older records during the test."""
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("records")) as running:
        yield running


def words(cluster: LocalCluster, *command: str) -> list[str]:
    return [ponor(), *command, "--data", str(cluster.directory / "data")]


def run(cluster: LocalCluster, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words(cluster, *command), input=stdin, capture_output=True, timeout=600)


def consumed(cluster: LocalCluster, *command: str) -> list[dict[str, Any]]:
    done = run(cluster, "topic", "consume", *command, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_consume_returns_produced_keys_headers_and_bytes(cluster: LocalCluster, compression: str) -> None:
    topic = f"round-{compression}"
    create_topic(cluster, topic, 3)
    lines = [
        {"key": "a", "value": "text", "headers": [["h", "1"]]},
        {"key": None, "value": {"base64": "/wA="}},
        {"key": "gone", "value": None, "partition": 2, "timestamp": NOW_MS},
    ]
    stdin = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    done = run(
        cluster, "topic", "produce", topic, "--json", "--compression", compression, "-o", "json", stdin=stdin
    )
    assert done.returncode == 0, done.stderr.decode()
    assert sum(row["records"] for row in json.loads(done.stdout)) == 3

    records = consumed(cluster, topic, "--from-beginning", "--no-follow")
    assert sorted((each["key"] or "", json.dumps(each["value"])) for each in records) == [
        ("", '{"base64": "/wA="}'),
        ("a", '"text"'),
        ("gone", "null"),
    ]
    (first,) = [each for each in records if each["key"] == "a"]
    assert first["headers"] == [["h", "1"]]
    (last,) = [each for each in records if each["key"] == "gone"]
    assert (last["partition"], last["timestamp"]) == (2, NOW_MS)


def test_produce_puts_keys_into_the_partitions_of_the_java_partitioner(cluster: LocalCluster) -> None:
    from confluent_kafka import Producer

    create_topic(cluster, "keyed", 5)
    keys = [f"key-{number}" for number in range(50)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce("keyed", b"theirs", key.encode())
    assert producer.flush(240) == 0
    done = run(
        cluster,
        "topic",
        "produce",
        "keyed",
        "-K",
        ":",
        stdin="".join(f"{key}:ours\n" for key in keys).encode(),
    )
    assert done.returncode == 0, done.stderr.decode()
    places: dict[str, set[int]] = {}
    for record in consumed(cluster, "keyed", "--from-beginning", "--no-follow"):
        places.setdefault(record["key"], set()).add(record["partition"])
    assert set(places) == set(keys)
    assert all(len(partitions) == 1 for partitions in places.values())


def test_consume_starts_at_the_given_offset(cluster: LocalCluster) -> None:
    create_topic(cluster, "places", 1)
    stdin = b"".join(
        b'{"value": "%d", "timestamp": %d}\n' % (number, NOW_MS + number) for number in range(10)
    )
    assert run(cluster, "topic", "produce", "places", "--json", stdin=stdin).returncode == 0

    def values(*command: str) -> list[str]:
        return [each["value"] for each in consumed(cluster, "places", "--no-follow", *command)]

    assert values("--offset", "7") == ["7", "8", "9"]
    assert values("--offset", "-2") == ["8", "9"]
    assert values("--offset", f"@{NOW_MS + 4}") == ["4", "5", "6", "7", "8", "9"]
    assert values("--offset", "earliest", "-n", "2") == ["0", "1"]
    assert values() == []


def test_consume_exits_with_0_when_the_reader_closes_the_pipe(cluster: LocalCluster) -> None:
    create_topic(cluster, "long", 1)
    stdin = b"".join(b"%d\n" % number for number in range(20_000))
    assert run(cluster, "topic", "produce", "long", stdin=stdin).returncode == 0
    reading = subprocess.Popen(
        words(cluster, "topic", "consume", "long", "--from-beginning"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    assert reading.stdout.readline() == b"0\n"
    reading.stdout.close()
    assert reading.wait(240) == 0
    assert reading.stderr.read() == b""
    reading.stderr.close()


def test_consume_follows_and_exits_with_130_on_ctrl_c(cluster: LocalCluster) -> None:
    create_topic(cluster, "live", 1)
    following = subprocess.Popen(
        words(cluster, "topic", "consume", "live", "--from-beginning"), stdout=subprocess.PIPE
    )
    assert following.stdout is not None
    for number in range(3):
        assert run(cluster, "topic", "produce", "live", stdin=b"record %d\n" % number).returncode == 0
        assert following.stdout.readline() == b"record %d\n" % number
    following.send_signal(signal.SIGINT)
    assert following.wait(240) == 130
    following.stdout.close()


def test_produce_exits_with_130_on_ctrl_c_while_it_waits_for_input(cluster: LocalCluster) -> None:
    create_topic(cluster, "typed", 1)
    typing = subprocess.Popen(
        words(cluster, "topic", "produce", "typed"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert typing.stdin is not None
    assert typing.stderr is not None
    typing.stdin.write(b"first\n")
    typing.stdin.flush()
    # The record is written without a further line: produce does not wait for a full batch.
    found = run(cluster, "topic", "consume", "typed", "--offset", "earliest", "-n", "1")
    assert found.stdout == b"first\n"
    typing.send_signal(signal.SIGINT)
    assert typing.wait(240) == 130
    assert b"Traceback" not in typing.stderr.read()
    typing.stdin.close()
    typing.stderr.close()


def test_consume_in_a_group_shares_partitions_and_continues_at_its_offsets(cluster: LocalCluster) -> None:
    create_topic(cluster, "shared", 4)
    stdin = b"".join(b"%d:%d\n" % (number, number) for number in range(200))
    assert run(cluster, "topic", "produce", "shared", "-K", ":", stdin=stdin).returncode == 0
    begun = consumed(cluster, "shared", "--group", "team", "--from-beginning", "-n", "50")
    rest = consumed(cluster, "shared", "--group", "team", "--from-beginning", "--no-follow")
    assert sorted(int(each["value"]) for each in (*begun, *rest)) == list(range(200))

    ours = subprocess.Popen(
        words(cluster, "topic", "consume", "shared", "--group", "team"), stdout=subprocess.PIPE
    )
    assert ours.stdout is not None
    theirs = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "team", "session.timeout.ms": 10_000,  # noqa: E501
                       "partition.assignment.strategy": "range"})  # fmt: skip
    theirs.subscribe(["shared"])
    deadline = time.monotonic() + 240
    while len(theirs.assignment()) != 2:
        theirs.poll(0.2)
        assert time.monotonic() < deadline, "the two members do not share the partitions"
    theirs.close()
    ours.send_signal(signal.SIGINT)
    assert ours.wait(240) == 130
    ours.stdout.close()


@pytest.fixture(scope="module")
def topic_of_errors(cluster: LocalCluster) -> None:
    create_topic(cluster, "errors", 1)
    cluster.run("topic", "create", "keyed-only", "--config", "cleanup.policy=compact")


@pytest.mark.usefixtures("topic_of_errors")
@pytest.mark.parametrize(
    ("command", "stdin", "word"),
    [
        (("produce", "nowhere"), b"x\n", "ponor topic create nowhere"),
        (("produce", "errors", "-p", "9"), b"x\n", "no partition 9"),
        (("produce", "errors", "--json"), b'{"value": 1}\n{\n', "line 2"),
        (
            ("produce", "errors", "--json"),
            b'{"headers": {"a": "b"}}\n',
            "line 1: give the record a key or a value",
        ),
        (("produce", "keyed-only"), b"no key\n", "keyed-only-0: the records were refused: INVALID_RECORD"),
        (("produce", "errors"), b"x" * 1_100_000, "max.message.bytes is the limit"),
        (("produce", "errors", "--compression", "rar"), b"", "choose none, gzip"),
        (("consume", "errors", "--offset", "soon"), b"", "earliest, latest"),
        (("consume", "errors", "--from-beginning", "--offset", "1"), b"", "one of them"),
    ],
)
def test_produce_and_consume_name_the_error_and_the_remedy(
    cluster: LocalCluster, command: tuple[str, ...], stdin: bytes, word: str
) -> None:
    done = run(cluster, "topic", *command, stdin=stdin)
    assert done.returncode == 1
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("ponor: ")
    assert word in last


def test_node_add_and_remove_change_a_running_cluster(cluster: LocalCluster) -> None:
    added = run(cluster, "node", "add", "gc", "--set", "poll_interval_ms_min=100")
    assert added.returncode == 0, added.stderr.decode()
    entry = cluster.process("gc", 1)
    assert entry["state"] == "serving"
    configuration = json.loads(Path(entry["config_file"]).read_text())
    assert configuration["settings"] == {"poll_interval_ms_min": "100"}
    cluster.kill("gc", 1)
    cluster.wait_serving("gc", 1, after_restarts=1)

    removed = run(cluster, "node", "remove", "gc", "1", "-o", "json")
    hint = f"`ponor cluster info` shows it until `ponor cluster unregister {entry['node_id']}`"
    assert json.loads(removed.stdout) == {"done": True, "message": f"gc 1 removed; 1 gc left. {hint}"}
    assert [each["id"] for each in cluster.describe()["processes"] if each["role"] == "gc"] == [0]
    assert not Path(entry["config_file"]).exists()


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (("add", "gc", "--set", "upload_interval_ms=500"), "not a setting of a gc"),
        (("remove", "broker", "0"), "no other broker can take"),
        (("remove", "gc", "5"), "no gc 5"),
    ],
)
def test_node_add_and_remove_name_the_reason_of_a_refusal(
    cluster: LocalCluster, command: tuple[str, ...], word: str
) -> None:
    done = run(cluster, "node", *command)
    assert done.returncode == 1
    assert word in done.stderr.decode()
