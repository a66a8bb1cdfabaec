"""Tasks and internal topics of a topology, for the topics that exist."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ponor_broker.groups.outcome import HeartbeatRefusedError
from ponor_broker.groups.streams.configured_topology import (
    TASKS_MAX,
    TOPOLOGY_TOPICS_MAX,
    StatusCode,
    check_structure,
    configure,
)
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from ponor_kafka.errors import ErrorCode

from services.broker.tests.streams_kit import COMPACT, WORD_COUNT


def problem(topology: Topology, topics: Mapping[str, int]) -> tuple[StatusCode, str] | None:
    found = configure(topology, topics.get).problem
    return None if found is None else (found.code, found.detail)


def test_internal_topics_get_the_partitions_of_what_is_read() -> None:
    configured = configure(WORD_COUNT, {"lines": 3}.get)
    assert configured.tasks == {"0": 3, "1": 3}
    assert configured.missing == (
        InternalTopic("app-by-word", 3),
        InternalTopic("app-counts", 3, configs=COMPACT),
    )
    assert problem(WORD_COUNT, {"lines": 3}) == (
        StatusCode.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: app-by-word, app-counts",
    )


def test_a_topology_is_ready_when_all_topics_exist() -> None:
    configured = configure(WORD_COUNT, {"lines": 3, "app-by-word": 3, "app-counts": 3}.get)
    assert configured.is_ready
    assert configured.missing == ()


def test_missing_source_topics_are_named() -> None:
    topology = Topology(0, (Subtopology("0", source_topics=("a", "b", "c", "d", "e")),))
    assert problem(topology, {"e": 1}) == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics a, b, c and 1 additional topics are missing.",
    )
    assert configure(topology, {"e": 1}.get).tasks == {}


def test_an_existing_internal_topic_must_fit() -> None:
    assert problem(WORD_COUNT, {"lines": 3, "app-by-word": 3, "app-counts": 2}) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic app-counts has different number of partitions: expected 3, found 2",
    )


SOURCE_DIFFERS = (
    "Number of partitions [5] of repartition topic [rx] doesn't match number of partitions [4] of the source "
    "topic."
)


def joined(*, required: tuple[int, int] = (0, 0), with_source: bool = True) -> Topology:
    """A join of a source topic and two repartition topics, which read topics of other sizes."""
    sources = ("orders",) if with_source else ()
    return Topology(
        1,
        (
            Subtopology("0", source_topics=("x",), repartition_sinks=("rx",)),
            Subtopology("1", source_topics=("y",), repartition_sinks=("ry",)),
            Subtopology(
                "2",
                source_topics=sources,
                repartition_sources=(InternalTopic("rx", required[0]), InternalTopic("ry", required[1])),
                copartition_groups=(frozenset({*sources, "rx", "ry"}),),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("topology", "partitions"),
    [
        (joined(), 4),
        (joined(with_source=False), 7),
        (joined(required=(5, 0), with_source=False), 5),
        (joined(required=(5, 5), with_source=False), 5),
        (joined(required=(4, 0)), 4),
    ],
)
def test_copartitioned_topics_get_equal_numbers(topology: Topology, partitions: int) -> None:
    configured = configure(topology, {"x": 2, "y": 7, "orders": 4}.get)
    assert configured.partitions == {"rx": partitions, "ry": partitions}
    assert configured.tasks == {"0": 2, "1": 7, "2": partitions}


@pytest.mark.parametrize(
    ("topology", "detail"),
    [
        (
            joined(required=(5, 0)),
            SOURCE_DIFFERS,
        ),
        (
            joined(required=(5, 6), with_source=False),
            "Following topics do not have the same number of partitions: [{rx=5, ry=6}]",
        ),
    ],
)
def test_copartitioned_topics_of_unequal_numbers_are_refused(topology: Topology, detail: str) -> None:
    assert problem(topology, {"x": 2, "y": 7, "orders": 4}) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        detail,
    )


def test_chained_repartition_topics_follow_the_order_of_the_data() -> None:
    topology = Topology(
        0,
        (
            Subtopology("0", repartition_sources=(InternalTopic("b"),)),
            Subtopology("1", repartition_sources=(InternalTopic("a"),), repartition_sinks=("b",)),
            Subtopology("2", source_topics=("x",), repartition_sinks=("a",)),
        ),
    )
    assert configure(topology, {"x": 6}.get).partitions == {"a": 6, "b": 6}


@pytest.mark.parametrize(
    ("subtopology", "message"),
    [
        (Subtopology("0", repartition_sources=(InternalTopic("a"),)), "is never used as a sink topic"),
        (
            Subtopology("0", repartition_sources=(InternalTopic("a"),), repartition_sinks=("a",)),
            "There may be loops",
        ),
        (Subtopology("0"), "No source topics found for subtopology 0"),
        (
            Subtopology("0", source_topics=("x",), changelogs=(InternalTopic("c", 3),)),
            "Changelog topic c must have an undefined partition count, but it is set to 3.",
        ),
    ],
)
def test_an_invalid_topology_is_refused_whatever_topics_exist(subtopology: Subtopology, message: str) -> None:
    with pytest.raises(HeartbeatRefusedError, match=message) as refusal:
        check_structure(Topology(0, (subtopology,)))
    assert refusal.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def chain(length: int) -> Topology:
    """Each subtopology writes the topic that the one before it reads; the last one reads `input`."""
    parts = [
        Subtopology(str(n), (), (InternalTopic(f"t{n}"),), (f"t{n - 1}",) if n else ()) for n in range(length)
    ]
    last = Subtopology(str(length), ("input",), (), (f"t{length - 1}",))
    return Topology(0, (*parts, last))


def test_a_long_chain_is_configured_in_linear_time() -> None:
    length = TOPOLOGY_TOPICS_MAX // 4
    calls = 0

    def partitions_of(name: str) -> int | None:
        nonlocal calls
        calls += 1
        return 3 if name == "input" else None

    configured = configure(chain(length), partitions_of)
    assert set(configured.partitions.values()) == {3}
    assert len(configured.missing) == length
    assert calls < 10 * length


def test_a_sink_gets_the_largest_count_of_the_topics_that_are_decided_first() -> None:
    topology = Topology(
        0,
        (
            Subtopology("0", ("small",), (), ("a",)),
            Subtopology("1", ("large",), (InternalTopic("a"),), ("b",)),
            Subtopology("2", (), (InternalTopic("b"),)),
        ),
    )
    configured = configure(topology, {"small": 2, "large": 5}.get)
    assert configured.partitions == {"a": 2, "b": 5}
    assert configured.tasks == {"0": 2, "1": 5, "2": 5}


def test_a_topology_with_too_many_topics_is_refused() -> None:
    check_structure(chain(TOPOLOGY_TOPICS_MAX // 4))
    with pytest.raises(HeartbeatRefusedError, match=f"at most {TOPOLOGY_TOPICS_MAX} are supported"):
        check_structure(chain(TOPOLOGY_TOPICS_MAX))


def test_too_many_tasks_get_a_status_and_no_assignment() -> None:
    parts = tuple(Subtopology(str(n), (f"in{n}",)) for n in range(101))
    configured = configure(Topology(0, parts), lambda _: TASKS_MAX // 100)
    assert configured.problem is not None
    assert configured.problem.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert not configured.tasks
