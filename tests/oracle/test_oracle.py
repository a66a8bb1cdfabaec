"""Ponor must answer every story as Kafka did when it was recorded, except for the differences in
`allowed`.

This needs neither Java nor Kafka. `make oracle` checks whether the recordings are still valid.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ponor_kafka.api import APIS

from tests.integration.cluster_in_process import running_cluster
from tests.oracle.allowed import ALLOWED, NOT_YET, TO_REPAIR, reason_for
from tests.oracle.compare import differences
from tests.oracle.exchange import RECORDINGS, load
from tests.oracle.story import Story, all_stories
from tests.oracle.telling import Listener

STORIES = all_stories()
SETTINGS = {
    "num_partitions": "4",
    "group_initial_rebalance_delay_ms": "0",
    "maintenance_interval_ms": "300000",  # as Kafka: retention would delete the records of 1970
}
REQUESTS_MIN = 1000
SHOWN_MAX = 12
TIMED = {"fetch_deleted"}
"""Two seconds suffice for a story. On an overloaded machine that takes longer, the story is repeated."""
TELLINGS_MAX = 10
NOT_IN_KAFKA = {
    ("Produce", 0), ("Produce", 1), ("Produce", 2),  # listed and refused: see docs/compatibility.md
    ("ApiVersions", 5), ("DeleteGroups", 3), ("StreamsGroupHeartbeat", 1),  # added in Kafka 4.4
}  # fmt: skip


@pytest.fixture(scope="module")
def ponor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    with running_cluster(tmp_path_factory.mktemp("oracle"), SETTINGS) as cluster:
        yield Listener("Ponor", cluster.port)


@pytest.fixture(scope="module")
def used() -> set[str]:
    return set()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_ponor_answers_as_kafka_does(ponor: Listener, story: Story, used: set[str]) -> None:
    for _ in range(TELLINGS_MAX if story.name in TIMED else 1):
        found = differences(load(story.name), ponor.hear(story))
        reasons = [(difference, reason_for(difference)) for difference in found]
        unexplained = [str(difference) for difference, reason in reasons if reason is None]
        if not unexplained:
            break
    used.update(reason.name for _, reason in reasons if reason is not None)
    if story.name in NOT_YET:
        assert unexplained, f"{story.name} comes out right; take it off NOT_YET"
        pytest.xfail(NOT_YET[story.name])
    shown = unexplained[:SHOWN_MAX]
    assert not unexplained, "\n".join([f"Ponor differs from Kafka in {len(unexplained)} fields:", *shown])


def test_every_allowed_difference_still_exists(used: set[str], request: pytest.FixtureRequest) -> None:
    heard = sum(
        1 for item in request.session.items if item.name.startswith("test_ponor_answers_as_kafka_does")
    )
    if heard < len(STORIES):
        pytest.skip("only some stories ran")
    unused = [entry.name for entry in (*ALLOWED, *TO_REPAIR) if entry.name not in used]
    assert not unused, f"Ponor does not differ in these any more; take them off the list: {unused}"


def test_every_advertised_version_is_requested(ponor: Listener) -> None:
    told = ponor.hear(next(story for story in STORIES if story.name == "api_versions"))
    answered: set[tuple[str, int]] = set()
    for story in STORIES:
        answered |= {(one.api, one.version) for one in load(story.name).exchanges if "body" in one.answer}
    for row in told.exchanges[0].answer["body"]["api_keys"]:
        name = APIS[row["api_key"]].request.removesuffix("Request")
        spoken = {(name, version) for version in range(row["min_version"], row["max_version"] + 1)}
        assert spoken - answered - NOT_IN_KAFKA == set(), f"no story asks {sorted(spoken - answered)}"


def test_there_is_one_recording_per_story() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.json")} == {story.name for story in STORIES}
    assert NOT_YET.keys() <= {story.name for story in STORIES}
    names = [entry.name for entry in (*ALLOWED, *TO_REPAIR)]
    assert len(set(names)) == len(names)
    assert sum(len(load(story.name).exchanges) for story in STORIES) >= REQUESTS_MIN
