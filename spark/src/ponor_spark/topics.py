"""Partitions of a query: Spark's `assign`, `subscribe` and `subscribePattern`.

The existing topics come from the snapshot's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ponor_kafka.internal_topics import INTERNAL_TOPICS

from ponor_spark.errors import TopicMissingError


@dataclass(frozen=True, slots=True)
class Assign:
    """Exactly these partitions."""

    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches; no match is not an error, because a topic may be
    created later.
    """

    pattern: str


@dataclass(frozen=True, slots=True)
class IfThere:
    """A choice without its missing topics, for a query that continues when a topic is deleted."""

    choice: TopicChoice


TopicChoice: TypeAlias = Assign | Subscribe | SubscribePattern | IfThere


def chosen_partitions(choice: TopicChoice, partition_counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return topic and partition of each chosen partition, sorted.

    Raises:
        TopicMissingError: a named topic or partition does not exist.
    """
    return sorted(_chosen(choice, partition_counts))


def _chosen(choice: TopicChoice, partition_counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    match choice:
        case Assign(partitions):
            for topic, numbers in partitions.items():
                count = _count("assign", topic, partition_counts)
                for number in numbers:
                    if number >= count:
                        raise TopicMissingError(
                            f"assign: topic {topic} has no partition {number}; it has 0 to {count - 1}"
                        )
                    yield topic, number
        case Subscribe(topics):
            for topic in topics:
                yield from ((topic, number) for number in range(_count("subscribe", topic, partition_counts)))
        case SubscribePattern(pattern):
            wanted = re.compile(pattern)
            for topic, count in partition_counts.items():
                if topic not in INTERNAL_TOPICS and wanted.fullmatch(topic):
                    yield from ((topic, number) for number in range(count))
        case IfThere(named):
            yield from _chosen(_remaining(named, partition_counts), partition_counts)


def _remaining(choice: TopicChoice, partition_counts: Mapping[str, int]) -> TopicChoice:
    match choice:
        case Assign(partitions):
            return Assign(
                {
                    topic: tuple(number for number in numbers if number < partition_counts[topic])
                    for topic, numbers in partitions.items()
                    if topic in partition_counts
                }
            )
        case Subscribe(topics):
            return Subscribe(tuple(topic for topic in topics if topic in partition_counts))
    return choice


def _count(option: str, topic: str, partition_counts: Mapping[str, int]) -> int:
    count = partition_counts.get(topic)
    if count is None:
        raise TopicMissingError(
            f"{option}: there is no topic {topic}; correct the name, or create it (`ponor topic list` lists"
            " the topics)"
        )
    return count
