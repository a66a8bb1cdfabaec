"""What a topology needs at the topics that exist: tasks, internal topics, and what is wrong (pure functions).

Source: Apache Kafka 4.3.1, `streams/topics`. The texts of the details are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.outcome import HeartbeatRefusedError
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology

_NAMED_MAX: Final = 3
"""Topics that a detail names."""
TOPOLOGY_TOPICS_MAX: Final = 2_000
"""Mentions of topics in a topology, so that it can be configured in one turn of the event loop."""
TASKS_MAX: Final = 10_000
"""Tasks of a topology. A heartbeat processes the tasks of its member in one turn of the event loop."""
PartitionsOf: TypeAlias = Callable[[str], int | None]
"""Returns the number of partitions of a topic; None if it does not exist."""


class StatusCode(IntEnum):
    """Codes of the statuses in an answer to a heartbeat."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True)
class Status:
    """A condition of the group that members report to their application."""

    code: StatusCode
    detail: str


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology at one version of the topics.

    Attributes:
        tasks: number of tasks by subtopology id; empty if the topics do not allow any.
        partitions: number of partitions of each internal topic.
        missing: internal topics to create, with numbers of partitions.
        problem: why no tasks are assigned; None if the topology is ready.
    """

    tasks: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[InternalTopic, ...] = ()
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


class _TopicError(Exception):
    """The topics do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, partitions_of: PartitionsOf) -> ConfiguredTopology:
    """Compute the tasks and internal topics of a topology.

    Raises:
        HeartbeatRefusedError: the topology itself is invalid: STREAMS_INVALID_TOPOLOGY.
    """
    try:
        _check_sources(topology, partitions_of)
        decided = _decided_partitions(topology, partitions_of)
        missing = _missing_topics(topology, partitions_of, decided)
    except _TopicError as error:
        return ConfiguredTopology(problem=error.status)
    counts = (
        (each.subtopology_id, _task_count(each, partitions_of, decided)) for each in topology.subtopologies
    )
    tasks = dict(counts)
    if sum(tasks.values()) > TASKS_MAX:
        detail = (
            f"The topology has {sum(tasks.values())} tasks; at most {TASKS_MAX} are supported. "
            "Use fewer partitions, or split the application."
        )
        return ConfiguredTopology(problem=Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail))
    problem = None
    if missing:
        names = _summary([topic.name for topic in missing])
        problem = Status(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}")
    return ConfiguredTopology(tasks, decided, missing, problem)


def check_structure(topology: Topology) -> None:
    """Check what does not depend on the topics that exist.

    Raises:
        HeartbeatRefusedError: STREAMS_INVALID_TOPOLOGY.
    """
    mentions = sum(
        1
        + len(each.source_topics)
        + len(each.repartition_sources)
        + len(each.repartition_sinks)
        + len(each.changelogs)
        + sum(map(len, each.copartition_groups))
        for each in topology.subtopologies
    )
    if mentions > TOPOLOGY_TOPICS_MAX:
        raise _invalid(
            f"The topology mentions {mentions} subtopologies and topics; at most {TOPOLOGY_TOPICS_MAX} are "
            "supported. Split the application."
        )
    for each in topology.subtopologies:
        for topic in each.changelogs:
            if topic.partitions:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )
    external = {name for each in topology.subtopologies for name in each.source_topics}
    configure(topology, lambda name: 1 if name in external else None)


def _check_sources(topology: Topology, partitions_of: PartitionsOf) -> None:
    names = {name for each in topology.subtopologies for name in each.source_topics}
    missing = sorted(name for name in names if partitions_of(name) is None)
    if missing:
        raise _TopicError(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing.")


def _summary(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    suffix = f" and {more} additional topics" if more > 0 else ""
    return ", ".join(names[:_NAMED_MAX]) + suffix


def _decided_partitions(topology: Topology, partitions_of: PartitionsOf) -> dict[str, int]:
    """Return the number of partitions that each internal topic must have."""
    decided = _repartition_partitions(topology, partitions_of)
    sources = [topic for each in topology.subtopologies for topic in each.repartition_sources]
    fixed = {topic.name for topic in sources if topic.partitions}
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            decided.update(_copartitioned(group, fixed, decided, partitions_of))
    for each in topology.subtopologies:
        count = _task_count(each, partitions_of, decided)
        decided.update((topic.name, count) for topic in each.changelogs)
    return decided


def _known(name: str, partitions_of: PartitionsOf, decided: Mapping[str, int]) -> int | None:
    existing = partitions_of(name)
    return decided.get(name) if existing is None else existing


def _task_count(each: Subtopology, partitions_of: PartitionsOf, decided: Mapping[str, int]) -> int:
    counts = [_known(name, partitions_of, decided) for name in each.sources]
    if not counts:
        raise _invalid(f"No source topics found for subtopology {each.subtopology_id}")
    return max(count or 0 for count in counts)


def _repartition_partitions(topology: Topology, partitions_of: PartitionsOf) -> dict[str, int]:
    """Return the partitions of repartition topics: those that the application requires, and for the others
    the largest number of partitions that the writing subtopology reads.
    """
    wanted = {topic.name: topic for each in topology.subtopologies for topic in each.repartition_sources}
    sinks = {name for each in topology.subtopologies for name in each.repartition_sinks}
    decided = {name: topic.partitions for name, topic in wanted.items() if topic.partitions}
    if any(name not in decided and name not in sinks for name in wanted):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics, because a repartition source "
            "topic is never used as a sink topic."
        )
    readers: dict[str, list[int]] = {}
    for number, each in enumerate(topology.subtopologies):
        for topic in each.repartition_sources:
            readers.setdefault(topic.name, []).append(number)
    open_sinks = sinks - decided.keys()
    # A subtopology decides all its sinks as soon as it reads a topic that is decided. So each one is visited
    # at most twice, also in a long chain.
    due: Iterable[int] = range(len(topology.subtopologies))
    visited: set[int] = set()
    while open_sinks:
        found: dict[str, int] = {}
        for number in due:
            each = topology.subtopologies[number]
            count = _read_partitions(each, partitions_of, decided)
            if count is not None:
                visited.add(number)
                found.update((name, count) for name in each.repartition_sinks if name in open_sinks)
        if not found:
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be loops in "
                "the topology that cannot be resolved."
            )
        decided.update(found)
        open_sinks -= found.keys()
        due = sorted({number for name in found for number in readers.get(name, ())} - visited)
    return decided


def _read_partitions(
    each: Subtopology, partitions_of: PartitionsOf, decided: Mapping[str, int]
) -> int | None:
    """Return the largest number of partitions that a subtopology reads, of the topics that are decided."""
    counts = [decided.get(topic.name) for topic in each.repartition_sources]
    counts += [partitions_of(name) for name in each.source_topics]
    return max((count for count in counts if count is not None), default=None)


def _copartitioned(
    group: Iterable[str], fixed: set[str], decided: Mapping[str, int], partitions_of: PartitionsOf
) -> dict[str, int]:
    """Return the partitions of the repartition topics of a group: those of its other topics, or of those with
    a required number, or the largest number.
    """
    internal = {name: decided[name] for name in group if name in decided}
    external = {name: partitions_of(name) for name in group if name not in decided}
    if external:
        count = _same(external)
    elif required := {name: number for name, number in internal.items() if name in fixed}:
        count = _same(required) if len(required) == len(internal) else max(required.values())
        if len(set(required.values())) > 1:
            _same(required)
    else:
        count = max(internal.values(), default=0)
    for name, number in sorted(internal.items()):
        if name in fixed and number != count:
            raise _TopicError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{number}] of repartition topic [{name}] doesn't match number of "
                f"partitions [{count}] of the source topic.",
            )
    return dict.fromkeys(internal, count)


def _same(counts: Mapping[str, int | None]) -> int:
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={number}" for name, number in sorted(counts.items()))
        raise _TopicError(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(counts.values())) or 0


def _missing_topics(
    topology: Topology, partitions_of: PartitionsOf, decided: Mapping[str, int]
) -> tuple[InternalTopic, ...]:
    """Return the internal topics that do not exist, sorted by name."""
    missing: dict[str, InternalTopic] = {}
    for each in topology.subtopologies:
        for topic in (*each.repartition_sources, *each.changelogs):
            count, existing = decided[topic.name], partitions_of(topic.name)
            if existing is None:
                missing[topic.name] = replace(topic, partitions=count)
            elif existing != count:
                raise _TopicError(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {topic.name} has different number of partitions: expected {count}, "
                    f"found {existing}",
                )
    return tuple(missing[name] for name in sorted(missing))


def _invalid(message: str) -> HeartbeatRefusedError:
    return HeartbeatRefusedError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
