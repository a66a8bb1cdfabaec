"""`make oracle`: run the stories on a real Kafka and on Ponor.

Without `--record`, reports recordings that differ from Kafka's answers (stale) and from Ponor's;
with it, writes the recordings. Exit code 1 for stale recordings and unexplained differences; 0 with
a message without Java or its jars.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tests.integration.cluster_in_process import running_cluster
from tests.oracle.allowed import NOT_YET, reason_for
from tests.oracle.compare import Difference, differences
from tests.oracle.exchange import Told, load, path_of, save
from tests.oracle.story import Story, all_stories
from tests.oracle.telling import Listener
from tests.oracle.test_oracle import SETTINGS
from tests.peers.artifacts import KAFKA_VERSION, PeerMissingError
from tests.peers.kafka_peer import KafkaPeer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(prog="tests.oracle.main", description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help="write Kafka's answers to tests/oracle/recordings"
    )
    parser.add_argument("stories", nargs="*", help="globs of story names; all when there are none")
    options = parser.parse_args(arguments)
    stories = [story for story in all_stories() if _chosen(story, options.stories)]
    with tempfile.TemporaryDirectory(prefix="oracle-") as directory:
        try:
            kafka = _tell_kafka(stories, Path(directory) / "kafka")
        except PeerMissingError as error:
            print(f"oracle: skipped: {error}")
            return 0
        stale = _record(stories, kafka) if options.record else _stale(stories, kafka)
        unexplained = _tell_ponor(stories, kafka, Path(directory) / "ponor")
    print(
        f"{len(stories)} stories, {sum(len(told.exchanges) for told in kafka.values())} requests, {stale}"
        " stale recordings, ",
        end="",
    )
    print(f"{unexplained} stories in which Ponor differs without a reason")
    return 1 if stale or unexplained else 0


def _chosen(story: Story, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatch(story.name, glob) for glob in globs)


def _tell_kafka(stories: Sequence[Story], directory: Path) -> dict[str, Told]:
    with KafkaPeer(directory, heap="512m") as kafka:
        listener = Listener(f"Apache Kafka {KAFKA_VERSION}", kafka.port)
        return {story.name: listener.hear(story) for story in stories}


def _record(stories: Sequence[Story], kafka: dict[str, Told]) -> int:
    broken = 0
    for story in stories:
        told = kafka[story.name]
        if told.broke_off is None:
            save(told, story.name, story.title)
        else:
            broken += 1
            print(f"{story.name} cannot be told to Kafka to its end, and is not recorded: {told.broke_off}")
    return broken


def _stale(stories: Sequence[Story], kafka: dict[str, Told]) -> int:
    stale = 0
    for story in stories:
        if not path_of(story.name).exists():
            print(f"{story.name}: never recorded; make oracle RECORD=1")
            stale += 1
            continue
        try:
            found = [str(difference) for difference in differences(load(story.name), kafka[story.name])]
        except AssertionError as error:
            found = [str(error)]
        stale += bool(found)
        for line in found:
            print(f"stale recording: {line.replace('Kafka', 'recorded').replace('Ponor', 'Kafka today')}")
    return stale


def _tell_ponor(stories: Sequence[Story], kafka: dict[str, Told], directory: Path) -> int:
    directory.mkdir()
    count = 0
    with running_cluster(directory, SETTINGS) as cluster:
        listener = Listener("Ponor", cluster.port)
        for story in stories:
            found = differences(kafka[story.name], listener.hear(story))
            unexplained = [difference for difference in found if reason_for(difference) is None]
            count += bool(unexplained) and story.name not in NOT_YET
            _print(story, unexplained)
    return count


def _print(story: Story, unexplained: Sequence[Difference]) -> None:
    known = "known: " if story.name in NOT_YET else ""
    for difference in unexplained:
        print(f"{known}{difference}")
    if known and not unexplained:
        print(f"{story.name} comes out right; take it off NOT_YET")


if __name__ == "__main__":
    sys.exit(main())
