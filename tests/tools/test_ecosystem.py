"""Kafka Connect, Kafka Streams and MirrorMaker 2, unmodified and without exactly-once, on a running cluster:
every record arrives.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from tests.peers.artifacts import ECOSYSTEM, PeerMissingError, java, program
from tests.ports import free_port
from tests.tools.ecosystem import (
    CONNECT_DISTRIBUTED,
    CONNECT_STANDALONE,
    MIRROR_MAKER,
    PATIENCE_S,
    JavaProcess,
    create_topic,
    file_sink,
    file_source,
    group_offsets,
    read_records,
    rest,
    word_count,
    worker_properties,
    write_lines,
    write_properties,
)
from tests.tools.java_programs import tool

pytestmark = pytest.mark.timeout(1_800)
LINES = [f"line {number}" for number in range(300)]


@pytest.fixture(scope="session", autouse=True)
def ecosystem() -> None:
    try:
        java()
        program("javac", "a Java compiler")
        assert ECOSYSTEM.class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_connect_standalone_copies_a_file_through_a_topic_and_continues(ponor: str, tmp_path: Path) -> None:
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in LINES))
    worker = worker_properties(ponor, tmp_path, free_port())
    files = [
        write_properties(
            tmp_path / "worker", {**worker, "offset.storage.file.filename": tmp_path / "offsets"}
        ),
        write_properties(tmp_path / "source", file_source("alone-in", source, "alone")),
        write_properties(tmp_path / "sink", file_sink("alone-out", sink, "alone")),
    ]
    with JavaProcess(tmp_path / "first", CONNECT_STANDALONE, *map(str, files)) as first:
        first.until(lambda: len(lines_of(sink)) >= len(LINES), "all lines at the sink")
    with source.open("a") as more:
        more.write("one more\n")
    with JavaProcess(tmp_path / "second", CONNECT_STANDALONE, *map(str, files)) as second:
        second.until(lambda: "one more" in lines_of(sink), "the line that was added")
    assert sorted(set(lines_of(sink))) == sorted([*LINES, "one more"])
    assert {value for _, value in read_records(ponor, "alone")} == {*LINES, "one more"}
    assert not [*first.errors, *second.errors]


def test_connect_distributed_keeps_its_state_in_compacted_topics(ponor: str, tmp_path: Path) -> None:
    source, sink, port = tmp_path / "in.txt", tmp_path / "out.txt", free_port()
    source.write_text("".join(f"{line}\n" for line in LINES))
    storage = {f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")}
    storage |= {f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")}
    properties = write_properties(
        tmp_path / "worker",
        {**worker_properties(ponor, tmp_path, port), "group.id": "connect", **storage},
    )
    connectors = [file_source("many-in", source, "many"), file_sink("many-out", sink, "many")]
    with JavaProcess(tmp_path / "first", CONNECT_DISTRIBUTED, str(properties)) as first:
        for connector in connectors:
            path = f"/connectors/{connector['name']}/config"
            first.until(
                lambda path=path, connector=connector: rest(port, "PUT", path, connector) is not None,  # type: ignore[misc]
                f"connector {connector['name']}",
            )
        first.until(lambda: len(lines_of(sink)) >= len(LINES), "all lines at the sink")
    with source.open("a") as more:
        more.write("one more\n")
    # The restarted worker finds connectors, offsets and states.
    with JavaProcess(tmp_path / "second", CONNECT_DISTRIBUTED, str(properties)) as second:
        second.until(lambda: "one more" in lines_of(sink), "the line that was added")
        status = rest(port, "GET", "/connectors/many-in/status")
        assert status is not None
        assert status["connector"]["state"] == "RUNNING"
    assert sorted(set(lines_of(sink))) == sorted([*LINES, "one more"])
    for kind in ("config", "offset", "status"):
        assert _config(ponor, f"connect-{kind}", "cleanup.policy") == "compact"
    assert not [*first.errors, *second.errors]


def test_streams_counts_words_and_restores_its_state_from_the_changelog(ponor: str, tmp_path: Path) -> None:
    create_topic(ponor, "lines")
    create_topic(ponor, "counts")
    words = (ponor, "lines", "counts", "word-count")
    write_lines(ponor, "lines", ["the quick brown fox", "jumps over the lazy dog"] * 50)
    expected = Counter(["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"] * 50)

    def counted() -> bool:
        return {word: int(count) for word, count in read_records(ponor, "counts") if word} == expected

    with word_count(tmp_path / "first", *words, str(tmp_path / "state-1"), "at_least_once") as first:
        first.until(counted, "all words counted")
    write_lines(ponor, "lines", ["the end"])
    expected += Counter(("the", "end"))
    # On another disk: the counts come from the changelog.
    with word_count(tmp_path / "second", *words, str(tmp_path / "state-2"), "at_least_once") as second:
        second.until(counted, "all words counted by an application without its state")
    topics = AdminClient({"bootstrap.servers": ponor}).list_topics(timeout=PATIENCE_S).topics
    assert {"word-count-by-word-repartition", "word-count-counts-changelog"} <= set(topics)
    assert _config(ponor, "word-count-counts-changelog", "cleanup.policy") == "compact"
    assert not [*first.errors, *second.errors]


def test_mirror_maker_mirrors_a_kafka_with_its_groups(ponor: str, kafka: str, tmp_path: Path) -> None:
    create_topic(kafka, "invoices")
    write_lines(kafka, "invoices", LINES)
    # At the end of the topic: MirrorMaker translates only offsets after the last one that it
    # recorded when its checkpoints began.
    committed = _consume(kafka, "invoices", "billing", len(LINES))
    properties: dict[str, object] = {
        "clusters": "old,new",
        "old.bootstrap.servers": kafka,
        "new.bootstrap.servers": ponor,
        "old->new.enabled": "true",
        "old->new.topics": "invoices",
        "old->new.groups": "billing",
        "new->old.enabled": "false",
        "sync.group.offsets.enabled": "true",
        "offset.lag.max": 0,
        "plugin.path": worker_properties(ponor, tmp_path, 0)["plugin.path"],
    }
    properties |= {f"{what}.interval.seconds": 1 for what in INTERVALS}
    properties |= {f"{what}.replication.factor".lstrip("."): 1 for what in REPLICATED}
    file = write_properties(tmp_path / "mirror.properties", properties)
    with JavaProcess(tmp_path / "mirror", MIRROR_MAKER, str(file)) as mirror:
        mirror.until(lambda: _mirrored(ponor) == sorted(LINES), "all records at the target")
        mirror.until(
            lambda: group_offsets(ponor, "billing", "old.invoices") == committed, "the group's offsets"
        )
        write_lines(kafka, "invoices", ["one more"])
        mirror.until(lambda: "one more" in _mirrored(ponor), "a record that came later")
        # A checkpoint that runs while MirrorMaker closes logs an error, so this comes before the end.
        assert not mirror.errors


INTERVALS = (
    "refresh.topics",
    "refresh.groups",
    "sync.topic.configs",
    "emit.checkpoints",
    "sync.group.offsets",
)
REPLICATED = (
    "",
    "checkpoints.topic",
    "heartbeats.topic",
    "offset-syncs.topic",
    "offset.storage",
    "status.storage",
    "config.storage",
)


def _mirrored(bootstrap: str) -> list[str]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=PATIENCE_S).topics
    if "old.invoices" not in topics:
        return []
    return sorted(value for _, value in read_records(bootstrap, "old.invoices"))


def _consume(bootstrap: str, topic: str, group: str, count: int) -> dict[int, int]:
    """Read this many records in a group and commit; return the offsets by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}  # noqa: E501
    )  # fmt: skip
    consumer.subscribe([topic])
    try:
        for _ in range(count):
            assert consumer.poll(PATIENCE_S) is not None
        committed = consumer.commit(asynchronous=False)
        assert committed is not None
        return {each.partition: each.offset for each in committed if each.offset >= 0}
    finally:
        consumer.close()


def _config(bootstrap: str, topic: str, name: str) -> str:
    words = ("--bootstrap-server", bootstrap, "--describe", "--entity-type", "topics", "--entity-name", topic)
    shown = tool("kafka.admin.ConfigCommand", *words, "--all").out
    (value,) = {
        line.split("=")[1].split()[0] for line in shown.splitlines() if line.strip().startswith(f"{name}=")
    }
    return value
