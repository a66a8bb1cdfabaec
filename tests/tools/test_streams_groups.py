"""Kafka Streams with `group.protocol=streams`, unmodified: the broker creates topics and assigns tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import ECOSYSTEM, PeerMissingError, java, program
from tests.tools.ecosystem import create_topic, read_records, word_count, write_lines
from tests.tools.java_programs import tool

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]
TOOL: Final = "org.apache.kafka.tools.streams.StreamsGroupCommand"
APPLICATION: Final = "word-count-streams"
PARTITIONS: Final = 4


@pytest.fixture(scope="session", autouse=True)
def ecosystem() -> None:
    try:
        java()
        program("javac", "a Java compiler")
        assert ECOSYSTEM.class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


def test_streams_counts_words_in_a_streams_group_through_kills(brokers: LocalCluster, tmp_path: Path) -> None:
    bootstrap = brokers.bootstrap
    create_topic(bootstrap, "group-lines", PARTITIONS)
    create_topic(bootstrap, "group-counts", PARTITIONS)
    expected: Counter[str] = Counter()

    def write(line: str, times: int) -> None:
        write_lines(bootstrap, "group-lines", [line] * times)
        for word in line.split():
            expected[word] += times

    def is_counted() -> bool:
        return {word: int(count) for word, count in read_records(bootstrap, "group-counts")} == expected

    def say(*words: str) -> list[list[str]]:
        said = tool(TOOL, "--bootstrap-server", bootstrap, *words).out
        return [line.split() for line in said.splitlines() if line.startswith(APPLICATION)]

    words = (bootstrap, "group-lines", "group-counts", APPLICATION)
    write("the quick brown fox jumps over the lazy dog", 50)
    options = ("at_least_once", "streams")
    with word_count(tmp_path / "first", *words, str(tmp_path / "state-1"), *options) as first:
        first.until(is_counted, "all words counted")
        assert [APPLICATION] in say("--list")
        assert [APPLICATION, "Stable"] in say("--list", "--state")
        (state,) = say("--describe", "--group", APPLICATION, "--state", "--verbose")
        assert "Stable" in state
        members = say("--describe", "--group", APPLICATION, "--members")
        assert len(members) == 2, "one for each thread"
        offsets = say("--describe", "--group", APPLICATION)
        assert {(row[1], row[2]) for row in offsets} >= {
            ("group-lines", str(partition)) for partition in range(PARTITIONS)
        }
        for number in range(3):
            # One of the three coordinates the group; its members keep their tasks.
            restarts = brokers.process("broker", number)["restarts"]
            assert brokers.kill("broker", number)
            write("the end", 10)
            brokers.wait_serving("broker", number, after_restarts=restarts + 1)
            first.until(is_counted, f"all words counted after broker {number} was killed")
    write("once more the fox", 5)
    # On another disk: the counts come from the changelog.
    with word_count(tmp_path / "second", *words, str(tmp_path / "state-2"), *options) as second:
        second.until(is_counted, "all words counted by an application without its state")
    assert say("--describe", "--group", APPLICATION, "--state")[0][-2:] == ["Empty", "0"]
    tool(TOOL, "--bootstrap-server", bootstrap, "--delete", "--group", APPLICATION)
    assert not say("--list")
