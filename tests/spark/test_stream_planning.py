"""Planning of streams without Spark: limits, delays, and leases."""

from __future__ import annotations

from typing import Any

import pytest
from ponor_spark.cluster import ClusterReader, find_cluster
from ponor_spark.errors import SnapshotExpiredError
from ponor_spark.options import parse_options
from ponor_spark.stream_offsets import StreamOffsets, from_json
from ponor_spark.stream_planning import StreamPlanner
from ponor_spark.stream_snapshots import AGE_MS_MIN

from tests.spark.kafka_rows import assorted, create_topic, produce
from tests.spark.topics_cluster import TopicsCluster

pytestmark = pytest.mark.timeout(900)


class HandClock:
    """A clock that advances when the test says so."""

    def __init__(self) -> None:
        self.ns = 10**12

    def monotonic_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return self.ns // 1_000_000

    async def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)

    def advance(self, ms: int) -> None:
        self.ns += ms * 1_000_000


@pytest.fixture(scope="module")
def planned(topics: TopicsCluster) -> str:
    create_topic(topics.kafka, "planned", 2)
    produce(topics.kafka, "planned", assorted(100, 2, seed=1))
    topics.until_in_objects("planned")
    return "planned"


def planner_of(topics: TopicsCluster, topic: str, clock: HandClock, **options: Any) -> StreamPlanner:
    given = topics.options(topic, startingOffsets="earliest", **options)
    return StreamPlanner(parse_options(given, streaming=True), clock=clock)


def at(content: dict[str, Any]) -> dict[str, dict[int, int]]:
    return from_json(content).offsets


def test_few_rows_wait_until_the_delay_ends(topics: TopicsCluster, planned: str) -> None:
    clock = HandClock()
    planner = planner_of(topics, planned, clock, minOffsetsPerTrigger=1000, maxTriggerDelay="10s")
    start = planner.initial()
    assert at(start) == {planned: {0: 0, 1: 0}}
    assert planner.latest(start, most=None, least=1000) == start
    clock.advance(9_999)
    assert planner.latest(start, most=None, least=1000) == start
    clock.advance(1)
    end = planner.latest(start, most=None, least=1000)
    assert at(end) == {planned: {0: 50, 1: 50}}
    assert planner.latest(end, most=None, least=None) == end
    assert planner.splits(end, end) == []
    planner.close()


def test_available_now_takes_precedence_over_the_options(topics: TopicsCluster, planned: str) -> None:
    planner = planner_of(topics, planned, HandClock(), maxOffsetsPerTrigger=10, minOffsetsPerTrigger=5)
    start = planner.initial()
    assert at(planner.latest(start, most=10, least=5)) == {planned: {0: 5, 1: 5}}
    assert at(planner.latest(start, most=None, least=None)) == {planned: {0: 50, 1: 50}}
    planner.fix_end()
    assert at(planner.latest(start, most=10, least=1_000_000)) == {planned: {0: 5, 1: 5}}
    planner.close()


def test_an_answer_without_new_records_is_not_reused(topics: TopicsCluster) -> None:
    """Spark queries a hundred times per second, so one snapshot answers several queries. After an
    answer without new records, records may have been produced.
    """
    create_topic(topics.kafka, "quiet")
    produce(topics.kafka, "quiet", assorted(10, 1, seed=1))
    topics.until_in_objects("quiet")
    clock = HandClock()
    planner = planner_of(topics, "quiet", clock)
    end = planner.latest(planner.initial(), most=None, least=None)
    before = planner._snapshots.newest
    assert before is not None
    produce(topics.kafka, "quiet", assorted(10, 1, seed=2))
    topics.until_in_objects("quiet")
    asked_ns = clock.ns
    assert at(planner.latest(end, most=None, least=None)) == {"quiet": {0: 20}}
    assert clock.ns - asked_ns == AGE_MS_MIN * 1_000_000, "no sooner than that after the last one"
    after = planner._snapshots.newest
    assert after is not None
    assert after is not before
    assert planner._snapshots.objects_of(after) is planner._snapshots.objects_of(before)
    planner.close()


def test_at_most_two_leases_are_held_and_none_at_the_end(topics: TopicsCluster, planned: str) -> None:
    clock = HandClock()
    planner = planner_of(topics, planned, clock)
    options = parse_options(topics.options(planned), streaming=False)
    start = planner.initial()
    leases: list[int] = []

    def look() -> dict[str, Any]:
        clock.advance(1_000)
        found = planner.latest(start, most=None, least=None)
        newest = planner._snapshots.newest
        assert newest is not None
        leases.append(newest.lease_id)
        return found

    with ClusterReader(find_cluster(options.cluster)) as cluster:

        def held() -> list[int]:
            return [lease for lease in leases if _is_held(cluster, lease)]

        look()
        end = look()
        assert held() == leases[1:]
        assert planner.splits(start, end)
        look()
        look()
        assert held() == [leases[1], leases[3]], "of the batch that is planned, and the newest"
        planner.committed()
        assert held() == [leases[3]]
        planner.close()
        assert held() == []
    planner.close()


def _is_held(cluster: ClusterReader, lease_id: int) -> bool:
    try:
        cluster.renew(lease_id, 60_000)
    except SnapshotExpiredError:
        return False
    return True


def test_equal_offsets_have_equal_texts() -> None:
    """Spark compares offsets as texts."""
    one = StreamOffsets({"b": {10: 3, 2: 1}, "a": {0: 7}}, {"a": "aa", "b": "bb", "gone": "cc"})
    other = StreamOffsets({"a": {0: 7}, "b": {2: 1, 10: 3}}, {"b": "bb", "a": "aa"})
    assert repr(one.to_json()) == repr(other.to_json())
    assert from_json(one.to_json()) == StreamOffsets(one.offsets, {"a": "aa", "b": "bb"})
    assert from_json({"a": {"0": 7}}) == StreamOffsets({"a": {0: 7}})
