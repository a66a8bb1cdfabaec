"""The tasks and internal topics of a topology, and its bounds."""

from __future__ import annotations

import pytest
from ponor_broker.groups.consumer.events import HeartbeatRefusedError
from ponor_broker.groups.streams.configured_topology import (
    TASKS_MAX,
    TOPOLOGY_TOPICS_MAX,
    StatusCode,
    check_structure,
    configure,
)
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from ponor_kafka.errors import ErrorCode


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


def test_a_loop_is_refused() -> None:
    loop = (
        Subtopology("0", (), (InternalTopic("a"),), ("b",)),
        Subtopology("1", (), (InternalTopic("b"),), ("a",)),
    )
    with pytest.raises(HeartbeatRefusedError, match="loops in the topology") as refused:
        check_structure(Topology(0, loop))
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


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
