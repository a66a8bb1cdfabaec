"""Unmodified programs of Kafka's ecosystem: Connect workers, MirrorMaker 2, and a Streams
application. Each runs until it is closed.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.peers.artifacts import CACHE, ECOSYSTEM, java, program
from tests.tools.java_programs import SHORT_LIVED, SOURCES

PATIENCE_S: Final = 600.0
"""Only a hanging test takes this long."""
STOP_S_MAX: Final = 60.0
STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
CONNECT_STANDALONE: Final = "org.apache.kafka.connect.cli.ConnectStandalone"
CONNECT_DISTRIBUTED: Final = "org.apache.kafka.connect.cli.ConnectDistributed"
MIRROR_MAKER: Final = "org.apache.kafka.connect.mirror.MirrorMaker"


class JavaProcess:
    """A Java program with its output in a file; SIGTERM closes it."""

    def __init__(self, directory: Path, name: str, *words: str, class_path: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.output = directory / "output"
        path = ":".join(filter(None, (class_path, ECOSYSTEM.class_path)))
        command = [java(), *SHORT_LIVED, "-Xmx384m", "-cp", path, name, *words]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=directory
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Send SIGTERM and wait."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the program runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            said = self.output.read_text(errors="replace")[-4_000:]
            assert self._process.poll() is None, f"ended before {what}:\n{said}"
            assert time.monotonic() < deadline, f"{what} did not become true:\n{said}"
            time.sleep(0.2)

    @property
    def errors(self) -> list[str]:
        """Error lines of its output."""
        return [line for line in self.output.read_text(errors="replace").splitlines() if "ERROR" in line]


def write_properties(path: Path, properties: Mapping[str, object]) -> Path:
    """Write a file of properties."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def worker_properties(bootstrap: str, directory: Path, port: int) -> dict[str, object]:
    """Properties of a Connect worker; its plug-ins are on the class path."""
    plugins = directory / "plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    return {
        "bootstrap.servers": bootstrap,
        "key.converter": STRING,
        "value.converter": STRING,
        "offset.flush.interval.ms": 200,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "only_scan",
        "plugin.path": plugins,
    }


def file_source(name: str, file: Path, topic: str) -> dict[str, object]:
    """Source connector: lines of a file become records."""
    kind = "org.apache.kafka.connect.file.FileStreamSourceConnector"
    return {"name": name, "connector.class": kind, "tasks.max": 1, "file": file, "topic": topic}


def file_sink(name: str, file: Path, topic: str) -> dict[str, object]:
    """Sink connector: records become lines of a file."""
    kind = "org.apache.kafka.connect.file.FileStreamSinkConnector"
    return {"name": name, "connector.class": kind, "tasks.max": 1, "file": file, "topics": topic}


def rest(port: int, method: str, path: str, body: Mapping[str, object] | None = None) -> Any | None:
    """Send a request to a worker's REST interface; None without an answer."""
    data = None if body is None else json.dumps({name: str(value) for name, value in body.items()}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return json.loads(text) if text else {}
    except (urllib.error.URLError, OSError):
        return None


def word_count(directory: Path, *words: str) -> JavaProcess:
    """Our word count on Kafka Streams. Arguments: bootstrap, source, result, application id, state
    directory, processing guarantee, and optionally the group protocol.
    """
    source, classes = SOURCES / "WordCount.java", CACHE / "WordCount"
    classes.mkdir(parents=True, exist_ok=True)
    compiler = [program("javac", "a Java compiler"), "-encoding", "UTF-8", "-cp", ECOSYSTEM.class_path]
    subprocess.run([*compiler, "-d", str(classes), str(source)], check=True, timeout=PATIENCE_S)
    return JavaProcess(directory, "WordCount", *words, class_path=str(classes))


def create_topic(bootstrap: str, topic: str, partitions: int = 2) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def end_offsets(bootstrap: str, topic: str, isolation: str) -> list[int]:
    """Return the end of each partition of a topic: the last stable offset for read_committed, the high
    watermark for read_uncommitted.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation})
    try:
        partitions = sorted(consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions)
        return [_end_offset(consumer, TopicPartition(topic, partition)) for partition in partitions]
    finally:
        consumer.close()


def group_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the visible offsets of a group by partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(topic, PATIENCE_S).topics[topic].partitions
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, at) for at in partitions])
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    return {each.partition: each.offset for each in found.topic_partitions if each.offset >= 0}


def _end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = consumer.get_watermark_offsets(partition, STOP_S_MAX)
        except KafkaException:
            # The broker may have been killed: this request is not repeated by the client.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            assert found is not None
            return found[1]


def has_open_transactions(bootstrap: str, topic: str) -> bool:
    """Return whether the last stable offset of a partition is below its high watermark."""
    stable = end_offsets(bootstrap, topic, "read_committed")
    return stable != end_offsets(bootstrap, topic, "read_uncommitted")


def wait_no_open_transactions(bootstrap: str, *topics: str) -> None:
    """Wait for the end of all transactions: markers become durable after the answer to a commit."""
    deadline = time.monotonic() + PATIENCE_S
    while open_in := [topic for topic in topics if has_open_transactions(bootstrap, topic)]:
        assert time.monotonic() < deadline, f"open transactions in {open_in}"
        time.sleep(0.2)


def write_lines(bootstrap: str, topic: str, lines: list[str]) -> None:
    """Produce values, each also as its key so that they spread over partitions; wait for the
    acknowledgements. No line is written twice.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for line in lines:
        producer.produce(topic, key=line, value=line)
    assert producer.flush(PATIENCE_S) == 0


def read_records(bootstrap: str, topic: str) -> list[tuple[str | None, str]]:
    """Keys and values of all committed records of a topic, partition by partition."""
    return [record for records in read_partitions(bootstrap, topic) for record in records]


def read_partitions(bootstrap: str, topic: str) -> list[list[tuple[str | None, str]]]:
    """Keys and values of all committed records of each partition of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
         "auto.offset.reset": "earliest", "enable.auto.commit": False, "isolation.level": "read_committed"}
    )  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: list[list[tuple[str | None, str]]] = [[] for _ in partitions]
        left = len(partitions)
        while left:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"no end of {topic}"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left -= 1
                continue
            key, value, partition = message.key(), message.value(), message.partition()
            assert value is not None
            assert partition is not None
            found[partition].append((None if key is None else key.decode(), value.decode()))
    finally:
        consumer.close()
    return found
