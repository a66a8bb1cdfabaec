"""Kafka's own command line tools, unmodified, with their expected output.

If the output is about the cluster's content, the same command runs on a real Kafka and the outputs
are compared as text, with normalized node ids, addresses and ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.tools.ecosystem import has_open_transactions
from tests.tools.java_programs import Output, tool

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
PRODUCER_PERF = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"

CONTROLLER_NODE = (1 << 16) + 3000

Both = Callable[..., str]


@pytest.fixture
def both(ponor: str, kafka: str) -> Both:
    """Run a command on both brokers; the normalized outputs must be equal. Returns the output."""

    def say(name: str, *words: str, code: int | None = 0) -> str:
        with ThreadPoolExecutor(2) as pool:
            ours = pool.submit(tool, name, "--bootstrap-server", ponor, *words, code=code)
            theirs = pool.submit(tool, name, "--bootstrap-server", kafka, *words, code=code)
        assert _alike(ours.result(), ponor) == _alike(theirs.result(), kafka)
        return ours.result().out

    return say


def _alike(output: Output, bootstrap: str) -> list[str]:
    text = (
        output.out.replace(bootstrap, "BROKER").replace(bootstrap.split(":")[1], "PORT").replace("65536", "1")
    )
    # Kafka sets this for all brokers when a cluster is created, for eligible leader replicas; Ponor
    # has no replicas.
    text = re.sub(r"(?m)^\s*min\.insync\.replicas=.*\n?|min\.insync\.replicas=1,?", "", text)
    text = re.sub(r"TopicId: \S+", "TopicId: ID", text)
    text = re.sub(r"(?m)^\S+Z (.*?)ERROR.*", "ERROR", text)  # a line of the tool's own log, with its time
    text = re.sub(
        r"(consumer|console-consumer)(-[\w-]*)?-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "MEMBER", text
    )
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip())


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Write lines 0..count-1 with kafka-console-producer."""
    words = (
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--property",
        "parse.key=true",
        "--property",
        "key.separator=:",
    )
    tool(CONSOLE_PRODUCER, *words, feed="".join(f"key-{n}:line {n}\n" for n in range(count)))


def fill_both(ponor: str, kafka: str, topic: str, count: int) -> None:
    """Write the same lines to both."""
    fill(kafka, topic, count)
    fill(ponor, topic, count)


def test_topics_are_created_listed_described_altered_and_deleted(both: Both) -> None:
    both(TOPICS, "--create", "--topic", "orders", "--partitions", "2", "--config", "retention.ms=3600000")
    assert "PartitionCount: 2" in both(TOPICS, "--describe", "--topic", "orders")
    both(TOPICS, "--create", "--topic", "orders", code=1)
    both(TOPICS, "--create", "--topic", "orders", "--if-not-exists")
    both(TOPICS, "--create", "--topic", "bad name", code=1)
    both(TOPICS, "--alter", "--topic", "orders", "--partitions", "5")
    assert "PartitionCount: 5" in both(TOPICS, "--describe", "--topic", "orders")
    both(TOPICS, "--alter", "--topic", "orders", "--partitions", "3", code=1)
    both(TOPICS, "--describe", "--topic", "orders", "--topics-with-overrides")
    both(TOPICS, "--describe", "--under-replicated-partitions")
    both(TOPICS, "--describe", "--unavailable-partitions")
    both(TOPICS, "--describe", "--at-min-isr-partitions", "--topic", "orders")
    assert both(TOPICS, "--list", "--topic", "ord.*").split() == ["orders"]
    both(TOPICS, "--delete", "--topic", "orders")
    assert both(TOPICS, "--list", "--topic", "ord.*").split() == []
    both(TOPICS, "--delete", "--topic", "orders", code=1)
    both(TOPICS, "--describe", "--topic", "orders", code=1)


def test_configs_of_groups(both: Both) -> None:
    group = ("--entity-type", "groups", "--entity-name", "configured-group")
    both(CONFIGS, *group, "--describe")
    both(CONFIGS, *group, "--describe", "--all")
    values = "share.auto.offset.reset=earliest,consumer.session.timeout.ms=50000"
    both(CONFIGS, *group, "--alter", "--add-config", values)
    assert "share.auto.offset.reset=earliest" in both(CONFIGS, *group, "--describe")
    both(CONFIGS, "--entity-type", "groups", "--describe")
    both(CONFIGS, *group, "--alter", "--add-config", "share.record.lock.duration.ms=999999", code=1)
    both(CONFIGS, *group, "--alter", "--add-config", "no.such.config=1", code=1)
    both(CONFIGS, *group, "--alter", "--delete-config", "share.auto.offset.reset,consumer.session.timeout.ms")
    both(CONFIGS, *group, "--describe")


def test_configs_of_topics(both: Both) -> None:
    both(TOPICS, "--create", "--topic", "configured", "--partitions", "1")
    topic = ("--entity-type", "topics", "--entity-name", "configured")
    both(CONFIGS, *topic, "--describe")
    both(CONFIGS, *topic, "--describe", "--all")
    both(CONFIGS, *topic, "--alter", "--add-config", "retention.ms=7200000,cleanup.policy=[compact,delete]")
    assert "retention.ms=7200000" in both(CONFIGS, *topic, "--describe")
    both(CONFIGS, *topic, "--alter", "--delete-config", "retention.ms")
    both(CONFIGS, *topic, "--describe")
    both(CONFIGS, *topic, "--alter", "--add-config", "no.such.config=1", code=1)
    both(CONFIGS, *topic, "--alter", "--add-config", "retention.ms=soon", code=1)
    both(CONFIGS, "--entity-type", "topics", "--entity-name", "not-there", "--describe", code=None)


def test_scram_credentials_of_users(both: Both, ponor: str) -> None:
    # `--describe` also describes quotas, which Ponor does not have; the client library describes credentials.
    alice = ("--entity-type", "users", "--entity-name", "alice")
    both(CONFIGS, *alice, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=x]")
    both(CONFIGS, *alice, "--alter", "--add-config", "SCRAM-SHA-512=[password=y]")
    assert scram_iterations(ponor) == {"alice": [8_192, 4_096]}
    both(CONFIGS, *alice, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=64,password=x]", code=1)
    both(CONFIGS, *alice, "--alter", "--delete-config", "SCRAM-SHA-512")
    both(CONFIGS, *alice, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert scram_iterations(ponor) == {}


def scram_iterations(bootstrap: str) -> dict[str, list[int]]:
    """The iterations of all users' credentials, in the order of the mechanisms."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_user_scram_credentials()
    assert isinstance(described, Future), "a description of all users is one future"
    return {
        user: [
            each.iterations for each in sorted(row.scram_credential_infos, key=lambda e: e.mechanism.value)
        ]
        for user, row in described.result(60).items()
    }


def test_configs_of_brokers(ponor: str, both: Both) -> None:
    both(CONFIGS, "--entity-type", "brokers", "--entity-default", "--describe")
    both(
        CONFIGS,
        "--entity-type",
        "brokers",
        "--entity-default",
        "--alter",
        "--add-config",
        "log.cleaner.threads=2",
    )
    both(CONFIGS, "--entity-type", "brokers", "--entity-default", "--describe")
    both(
        CONFIGS,
        "--entity-type",
        "brokers",
        "--entity-default",
        "--alter",
        "--delete-config",
        "log.cleaner.threads",
    )
    one = tool(
        CONFIGS,
        "--bootstrap-server",
        ponor,
        "--entity-type",
        "brokers",
        "--entity-name",
        "65536",
        "--describe",
        "--all",
    )
    assert "num.partitions=4" in one.out
    assert "message.max.bytes=1048588" in one.out


def test_offsets_are_found_for_every_time(ponor: str, kafka: str, both: Both) -> None:
    both(TOPICS, "--create", "--topic", "timed", "--partitions", "2")
    fill_both(ponor, kafka, "timed", 20)
    for time in ("latest", "-1", "earliest", "-2", "earliest-local", "-4", "latest-tiered", "-5"):
        both(GET_OFFSETS, "--topic", "timed", "--time", time)
    both(GET_OFFSETS, "--topic", "timed", "--time", "earliest-pending-upload", code=None)
    newest = tool(
        GET_OFFSETS, "--bootstrap-server", ponor, "--topic", "timed", "--time", "max-timestamp"
    ).lines
    assert [line.split(":")[:2] for line in newest] == [["timed", "0"], ["timed", "1"]]
    both(GET_OFFSETS, "--topic", "timed", "--time", "1000")
    both(GET_OFFSETS, "--topic", "timed", "--time", "99999999999999")
    assert both(GET_OFFSETS, "--topic-partitions", "timed:1").startswith("timed:1:")
    both(GET_OFFSETS, "--topic", "timed", "--partitions", "0")
    both(GET_OFFSETS, "--topic", "not-there", code=1)


def test_records_are_deleted(ponor: str, kafka: str, both: Both, tmp_path: Path) -> None:
    both(TOPICS, "--create", "--topic", "trimmed", "--partitions", "1")
    fill_both(ponor, kafka, "trimmed", 10)
    plan = tmp_path / "plan.json"
    for offset in (4, 2, 99, -1):
        rows = [{"topic": "trimmed", "partition": 0, "offset": offset}]
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        both(DELETE_RECORDS, "--offset-json-file", str(plan), code=None)
        both(GET_OFFSETS, "--topic", "trimmed", "--time", "earliest")


def test_log_directories(ponor: str) -> None:
    tool(TOPICS, "--bootstrap-server", ponor, "--create", "--topic", "sized", "--partitions", "1")
    fill(ponor, "sized", 100)
    out = tool(LOG_DIRS, "--bootstrap-server", ponor, "--describe", "--topic-list", "sized").out
    described = json.loads(out[out.index("{") :])
    (broker,) = described["brokers"]
    (partition,) = broker["logDirs"][0]["partitions"]
    assert (broker["broker"], partition["partition"], partition["offsetLag"]) == (65536, "sized-0", 0)
    assert 1_000 < partition["size"] < 20_000
    assert broker["logDirs"][0]["error"] is None


def test_the_cluster_and_its_apis(ponor: str, kafka: str) -> None:
    said = tool(CLUSTER, "cluster-id", "--bootstrap-server", ponor).out
    assert re.fullmatch(r"Cluster ID: \S{22}\n", said)
    theirs = tool(CLUSTER, "list-endpoints", "--bootstrap-server", kafka).lines
    ours = tool(CLUSTER, "list-endpoints", "--bootstrap-server", ponor).lines
    assert [line.split()[1:3] for line in ours[1:]] == [["127.0.0.1", ponor.split(":")[1]]]
    assert ours[0].split() == theirs[0].split()
    tool(FEATURES, "--bootstrap-server", ponor, "describe")
    versions = tool(API_VERSIONS, "--bootstrap-server", ponor).out
    assert f"{ponor} (id: 65536 rack: null isFenced: false) -> (" in versions
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to 18 [usable: 18]" in versions
    assert "ERROR" not in versions


def test_the_quorum_of_controllers(ponor: str) -> None:
    status = tool(QUORUM, "--bootstrap-server", ponor, "describe", "--status").out
    facts = {line.split(":")[0]: line.partition(":")[2].strip() for line in status.splitlines()}
    voters = json.loads(facts["CurrentVoters"])
    assert [voter["id"] for voter in voters] == [CONTROLLER_NODE]
    assert int(facts["LeaderId"]) == CONTROLLER_NODE
    assert int(facts["HighWatermark"]) > 1
    assert int(facts["MaxFollowerLag"]) == 0
    assert json.loads(facts["CurrentObservers"]) == []
    rows = tool(QUORUM, "--bootstrap-server", ponor, "describe", "--replication").out.splitlines()
    assert rows[1].split()[0] == str(CONTROLLER_NODE)
    assert rows[1].split()[-1] == "Leader"


def test_features_rise_and_never_fall(ponor: str) -> None:
    described = tool(FEATURES, "--bootstrap-server", ponor, "describe").out
    assert re.search(r"Feature: ponor.metadata.level\s.*FinalizedVersionLevel: 1", described)
    tool(FEATURES, "--bootstrap-server", ponor, "upgrade", "--feature", "ponor.metadata.level=1")
    for refused in ("ponor.metadata.level=2", "ponor.unheard.of=1"):
        failed = tool(FEATURES, "--bootstrap-server", ponor, "upgrade", "--feature", refused, code=1)
        assert refused.split("=")[0].removeprefix("ponor.") in failed.out + failed.err
    tool(FEATURES, "--bootstrap-server", ponor, "downgrade", "--feature", "ponor.metadata.level=0", code=1)


def test_console_clients(ponor: str, kafka: str, both: Both) -> None:
    both(TOPICS, "--create", "--topic", "console", "--partitions", "1")
    fill_both(ponor, kafka, "console", 10)
    words = ("--topic", "console", "--from-beginning", "--max-messages", "10", "--timeout-ms", "240000")
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    out = both(CONSOLE_CONSUMER, *words, *shown, "--formatter-property", "print.partition=true")
    assert "Offset:9\tkey-9\tline 9" in out
    assert (
        len(
            both(
                CONSOLE_CONSUMER,
                "--topic",
                "console",
                "--partition",
                "0",
                "--offset",
                "7",
                "--max-messages",
                "3",
            ).splitlines()
        )
        == 3
    )


def test_performance_clients(ponor: str) -> None:
    tool(TOPICS, "--bootstrap-server", ponor, "--create", "--topic", "perf", "--partitions", "3")
    words = (
        "--bootstrap-server",
        ponor,
        "--topic",
        "perf",
        "--num-records",
        "50000",
        "--record-size",
        "200",
        "--throughput",
        "-1",
    )
    assert "50000 records sent" in tool(PRODUCER_PERF, *words).out
    read = tool(
        CONSUMER_PERF,
        "--bootstrap-server",
        ponor,
        "--topic",
        "perf",
        "--num-records",
        "50000",
        "--timeout",
        "240000",
    ).lines
    figures = dict(zip(read[0].split(", "), read[-1].split(", "), strict=True))
    assert int(figures["data.consumed.in.nMsg"]) == 50_000


def test_transactions_of_the_performance_client(ponor: str) -> None:
    tool(TOPICS, "--bootstrap-server", ponor, "--create", "--topic", "perf-committed", "--partitions", "3")
    words = (
        "--topic",
        "perf-committed",
        "--num-records",
        "5000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
    )
    transactions = ("--transactional-id", "perf", "--transaction-duration-ms", "50")
    sent = tool(PRODUCER_PERF, "--bootstrap-server", ponor, *words, *transactions)
    assert "5000 records sent" in sent.out
    consumed = ("--topic", "perf-committed", "--from-beginning", "--isolation-level", "read_committed")
    read = tool(
        CONSOLE_CONSUMER,
        "--bootstrap-server",
        ponor,
        *consumed,
        "--max-messages",
        "5000",
        "--timeout-ms",
        "240000",
    )
    assert len(read.lines) == 5000
    assert not has_open_transactions(ponor, "perf-committed")


def test_verifiable_clients(ponor: str) -> None:
    tool(TOPICS, "--bootstrap-server", ponor, "--create", "--topic", "verifiable", "--partitions", "3")
    sent = tool(
        VERIFIABLE_PRODUCER,
        "--bootstrap-server",
        ponor,
        "--topic",
        "verifiable",
        "--max-messages",
        "2000",
        "--acks",
        "-1",
    )
    events = [json.loads(line) for line in sent.lines]
    assert sum(event["name"] == "producer_send_success" for event in events) == 2000
    assert not any(event["name"] == "producer_send_error" for event in events)
    words = (
        "--bootstrap-server",
        ponor,
        "--topic",
        "verifiable",
        "--group-id",
        "verifiers",
        "--max-messages",
        "2000",
    )
    read = tool(VERIFIABLE_CONSUMER, *words, "--reset-policy", "earliest", "--verbose")
    values = [event["value"] for event in map(json.loads, read.lines) if event["name"] == "record_data"]
    assert sorted(map(int, values)) == list(range(2000))


def consume(bootstrap: str, topic: str, group: str, count: int) -> None:
    """Read and commit in a group."""
    words = (
        "--topic",
        topic,
        "--group",
        group,
        "--from-beginning",
        "--max-messages",
        str(count),
        "--timeout-ms",
        "240000",
    )
    assert len(tool(CONSOLE_CONSUMER, "--bootstrap-server", bootstrap, *words).lines) == count


def test_groups_are_listed_described_reset_and_deleted(ponor: str, kafka: str, both: Both) -> None:
    both(TOPICS, "--create", "--topic", "grouped", "--partitions", "1")
    fill_both(ponor, kafka, "grouped", 10)
    for bootstrap in (kafka, ponor):
        consume(bootstrap, "grouped", "readers", 10)
    group = ("--group", "readers")
    assert "readers" in tool(GROUPS, "--bootstrap-server", ponor, "--list").out
    tool(GROUPS, "--bootstrap-server", ponor, "--list", "--state")
    both(GROUPS, "--describe", *group)
    both(GROUPS, "--describe", *group, "--state")
    both(GROUPS, "--describe", *group, "--members", "--verbose")
    topic = ("--topic", "grouped")
    both(GROUPS, "--reset-offsets", *group, *topic, "--to-earliest", "--dry-run")
    for target in (
        ("--to-earliest",),
        ("--shift-by", "4"),
        ("--to-offset", "7"),
        ("--to-latest",),
        ("--shift-by", "-100"),
    ):
        both(GROUPS, "--reset-offsets", *group, *topic, *target, "--execute")
    both(GROUPS, "--reset-offsets", *group, *topic, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    both(GROUPS, "--reset-offsets", *group, *topic, "--by-duration", "PT1H", "--execute")
    both(GROUPS, "--reset-offsets", *group, *topic, "--to-current", "--execute")
    both(GROUPS, "--reset-offsets", *group, *topic, "--to-latest", "--export", "--dry-run")
    both(GROUPS, "--describe", "--offsets", *group)
    both(GROUPS, "--delete-offsets", *group, *topic)
    both(GROUPS, "--describe", *group)
    both(GROUPS, "--delete", *group)
    both(GROUPS, "--delete", *group, code=None)
    both(GROUPS, "--describe", *group, code=None)
    both(GROUPS, "--validate-regex", "gr.*", code=None)
