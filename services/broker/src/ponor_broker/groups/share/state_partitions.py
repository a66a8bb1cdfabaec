"""For which topic partitions a share group has delivery states (Kafka's ShareGroupStatePartitionMetadata).

    subscribed ──▶ initializing ── the persister created the state ──▶ initialized
    initialized ── offsets are deleted ──▶ deleting ── the persister deleted the state ──▶ nothing

Members get only initialized partitions. The value is a record: an interrupted step is repeated after a load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from ponor_broker.groups.consumer.member import TOPIC_BYTES

PARTITION_BYTES: Final = 60
"""Memory of one partition."""


class TopicStates(NamedTuple):
    """Partitions of one topic. The name is that of the topic when they were added."""

    name: str
    partitions: frozenset[int]


StatesById: TypeAlias = Mapping[bytes, TopicStates]
"""Partitions by topic id, without empty sets."""


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """The partitions of one group. `deleting` has the names of topics by id."""

    initializing: StatesById = field(default_factory=dict)
    initialized: StatesById = field(default_factory=dict)
    deleting: Mapping[bytes, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Memory of the partitions."""
        rows = (*self.initializing.values(), *self.initialized.values())
        names = sum(len(row.name) for row in rows) + sum(map(len, self.deleting.values()))
        topics = len(rows) + len(self.deleting)
        return names + TOPIC_BYTES * topics + PARTITION_BYTES * sum(len(row.partitions) for row in rows)

    @property
    def known(self) -> StatesById:
        """Partitions for which a state may exist, except those of topics in `deleting`."""
        return united(self.initialized, self.initializing)

    def begun(self, added: StatesById) -> StatePartitions:
        """Return the value while the states of `added` are created. Those that exist remain initialized."""
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in added}
        return replace(self, initializing=united(self.initializing, added), deleting=deleting)

    def ended(self, created: StatesById, failed: StatesById) -> StatePartitions:
        """Return the value after the states of `created` were created, and those of `failed` were not."""
        waiting = without(without(self.initializing, created), failed)
        return replace(self, initializing=waiting, initialized=united(self.initialized, created))

    def dropping(self, topics: Mapping[bytes, str]) -> StatePartitions:
        """Return the value while the states of whole topics are deleted."""
        return StatePartitions(
            _of_others(self.initializing, topics),
            _of_others(self.initialized, topics),
            {**self.deleting, **topics},
        )

    def dropped(self, topic_ids: Iterable[bytes]) -> StatePartitions:
        """Return the value without any trace of topics whose states were deleted."""
        gone = frozenset(topic_ids)
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone}
        return StatePartitions(
            _of_others(self.initializing, gone), _of_others(self.initialized, gone), deleting
        )


NO_STATES: Final = StatePartitions()


def united(first: StatesById, second: StatesById) -> dict[bytes, TopicStates]:
    """Return the partitions of both; the names of the second."""
    both = dict(first)
    for topic_id, states in second.items():
        known = both.get(topic_id)
        partitions = states.partitions if known is None else states.partitions | known.partitions
        both[topic_id] = TopicStates(states.name, partitions)
    return both


def without(states: StatesById, removed: StatesById) -> dict[bytes, TopicStates]:
    """Return the partitions that are not in `removed`."""
    left: dict[bytes, TopicStates] = {}
    for topic_id, (name, partitions) in states.items():
        other = removed.get(topic_id)
        rest = partitions if other is None else partitions - other.partitions
        if rest:
            left[topic_id] = TopicStates(name, rest)
    return left


def _of_others(states: StatesById, topic_ids: Iterable[bytes]) -> dict[bytes, TopicStates]:
    gone = frozenset(topic_ids)
    return {topic_id: each for topic_id, each in states.items() if topic_id not in gone}
