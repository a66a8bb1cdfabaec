"""The topology of a Kafka Streams application, as its members send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_TOPIC_BYTES: Final = 600
"""Memory of a topic of a topology, without its texts, rounded up."""
_SUBTOPOLOGY_BYTES: Final = 1_000


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition topic or changelog topic, which the coordinator creates.

    Attributes:
        partitions: 0 if the coordinator computes the number; always 0 for a changelog topic.
        replication_factor: 0 for the default of the cluster.
    """

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a topology. Its partition n is one task, which reads partition n of all source topics.

    Attributes:
        source_topics: topics that exist independently of the application, sorted.
        repartition_sources: internal topics that this subtopology reads, by name.
        repartition_sinks: internal topics that this subtopology writes, sorted.
        changelogs: internal topics with the state of its tasks. A task without state has none.
        copartition_groups: source topics that must have equal numbers of partitions.
    """

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[frozenset[str], ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of all topics that it reads."""
        return (*self.source_topics, *(topic.name for topic in self.repartition_sources))


@dataclass(frozen=True)
class Topology:
    """A topology; `subtopologies` are sorted by id."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @cached_property
    def by_source(self) -> Mapping[str, str]:
        """The id of the subtopology that reads a topic."""
        return {name: each.subtopology_id for each in self.subtopologies for name in each.sources}

    @cached_property
    def topics(self) -> frozenset[str]:
        """Names of all topics that must exist."""
        changelogs = (topic.name for each in self.subtopologies for topic in each.changelogs)
        return frozenset(self.by_source).union(changelogs)

    @cached_property
    def size_bytes(self) -> int:
        """Memory of the topology, rounded up."""
        size = 0
        for each in self.subtopologies:
            size += _SUBTOPOLOGY_BYTES + 4 * len(each.subtopology_id)
            names = (*each.source_topics, *each.repartition_sinks)
            size += sum(_TOPIC_BYTES + 8 * len(name) for name in names)
            for topic in (*each.repartition_sources, *each.changelogs):
                size += _TOPIC_BYTES + 8 * len(topic.name)
                size += sum(200 + 4 * (len(key) + len(value)) for key, value in topic.configs)
        return size
