"""Kafka Streams and Kafka Connect with exactly-once, unmodified, while brokers and they themselves are
killed: the totals are exactly right.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import ECOSYSTEM, PeerMissingError, java, program
from tests.ports import free_port
from tests.tools.ecosystem import (
    CONNECT_DISTRIBUTED,
    JavaProcess,
    create_topic,
    end_offsets,
    file_source,
    read_records,
    rest,
    wait_no_open_transactions,
    word_count,
    worker_properties,
    write_lines,
    write_properties,
)

pytestmark = pytest.mark.timeout(1_800)
WORDS = ["aye", "bee", "cee", "dee", "eff", "gee", "jay", "kay", "ell", "emm", "enn", "pea", "cue"]
LINES, WORDS_PER_LINE = 60, 25
PARTITIONS = 4


@pytest.fixture(scope="session", autouse=True)
def ecosystem() -> None:
    try:
        java()
        program("javac", "a Java compiler")
        assert ECOSYSTEM.class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


class Lines:
    """Writes random lines and counts their words."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._random = random.Random(1)
        self.expected: Counter[str] = Counter()

    def write(self) -> None:
        lines = [" ".join(self._random.choices(WORDS, k=WORDS_PER_LINE)) for _ in range(LINES)]
        write_lines(self._bootstrap, self._topic, lines)
        for line in lines:
            self.expected.update(line.split())


def counts_of(bootstrap: str, topic: str) -> dict[str, list[int]]:
    """Return the committed counts of each word, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for word, count in read_records(bootstrap, topic):
        assert word is not None
        found[word].append(int(count))
    return found


def test_streams_counts_every_word_once_through_kills(brokers: LocalCluster, tmp_path: Path) -> None:
    bootstrap = brokers.bootstrap
    create_topic(bootstrap, "once-lines", PARTITIONS)
    create_topic(bootstrap, "once-counts", PARTITIONS)
    lines = Lines(bootstrap, "once-lines")
    words = (bootstrap, "once-lines", "once-counts", "word-count-once")

    def is_counted() -> bool:
        found = counts_of(bootstrap, "once-counts")
        return {word: counts[-1] for word, counts in found.items()} == lines.expected

    def sum_of_ends() -> int:
        return sum(end_offsets(bootstrap, "once-counts", "read_uncommitted"))

    first_words = (*words, str(tmp_path / "state-1"), "exactly_once_v2")
    with word_count(tmp_path / "first", *first_words) as first:
        lines.write()
        first.until(is_counted, "all words counted")
        lines.write()
        restarts = brokers.process("broker", 1)["restarts"]
        assert brokers.kill("broker", 1)
        brokers.wait_serving("broker", 1, after_restarts=restarts + 1)
        first.until(is_counted, "all words counted after a broker was killed")
        end = sum_of_ends()
        lines.write()
        first.until(lambda: sum_of_ends() > end, "further output")
        first.kill()
    lines.write()
    # On another disk: the counts come from the changelog.
    second_words = (*words, str(tmp_path / "state-2"), "exactly_once_v2")
    with word_count(tmp_path / "second", *second_words) as second:
        second.until(is_counted, "all words counted by an application without its state")
    # Each word of the input is one step of its count.
    assert counts_of(bootstrap, "once-counts") == {
        word: list(range(1, count + 1)) for word, count in lines.expected.items()
    }
    internal = [f"word-count-once-{name}" for name in ("counts-changelog", "by-word-repartition")]
    wait_no_open_transactions(bootstrap, "once-counts", *internal)


def test_connect_copies_every_line_once_through_kills(brokers: LocalCluster, tmp_path: Path) -> None:
    bootstrap = brokers.bootstrap
    topic, source = "once-file", tmp_path / "in.txt"
    create_topic(bootstrap, topic, 1)
    written: list[str] = []

    def append() -> None:
        more = [f"line {number}" for number in range(len(written), len(written) + 500)]
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in more))
        written.extend(more)

    def is_copied() -> bool:
        return [value for _, value in read_records(bootstrap, topic)] == written

    def end() -> int:
        return sum(end_offsets(bootstrap, topic, "read_uncommitted"))

    append()
    port = free_port()
    worker = str(_exactly_once_worker(bootstrap, tmp_path, port))
    # A transaction is open for a second, unless it is committed by a stop.
    connector = file_source("once", source, topic) | {
        "exactly.once.support": "required",
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": 1_000,
    }
    with JavaProcess(tmp_path / "first", CONNECT_DISTRIBUTED, worker) as first:
        path = f"/connectors/{connector['name']}/config"
        first.until(lambda: rest(port, "PUT", path, connector) is not None, "the connector")
        first.until(is_copied, "all lines copied")
        before = end()
        append()
        first.until(lambda: end() > before, "further records")
        first.kill()
    append()
    with JavaProcess(tmp_path / "second", CONNECT_DISTRIBUTED, worker) as second:
        second.until(is_copied, "all lines copied by another worker")
        append()
        restarts = brokers.process("broker", 2)["restarts"]
        assert brokers.kill("broker", 2)
        brokers.wait_serving("broker", 2, after_restarts=restarts + 1)
        second.until(is_copied, "all lines copied after a broker was killed")
    wait_no_open_transactions(bootstrap, topic, "once-connect-offset")


def _exactly_once_worker(bootstrap: str, directory: Path, port: int) -> Path:
    kinds = ("config", "offset", "status")
    properties = worker_properties(bootstrap, directory, port) | {
        "group.id": "connect-once",
        "exactly.once.source.support": "enabled",
        "scheduled.rebalance.max.delay.ms": 0,
        **{f"{kind}.storage.topic": f"once-connect-{kind}" for kind in kinds},
        **{f"{kind}.storage.replication.factor": 1 for kind in kinds},
    }
    return write_properties(directory / "worker", properties)
