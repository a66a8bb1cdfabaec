"""The records of a streams group as values; `record_codec.py` encodes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from ponor_broker.groups.consumer.records import TargetEpoch
from ponor_broker.groups.streams.assignment import CurrentAssignment, Tasks
from ponor_broker.groups.streams.member import StreamsMember
from ponor_broker.groups.streams.topology import Topology


class RecordKind(IntEnum):
    """Kind of a record: Kafka's version of its key."""

    EPOCH = 17
    MEMBER = 19
    TARGET_EPOCH = 20
    TARGET = 21
    CURRENT = 22
    TOPOLOGY = 23


@dataclass(frozen=True, slots=True)
class StreamsKey:
    """Key of a record; `member_id` is empty for a record of the group."""

    kind: RecordKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The group epoch.

    Attributes:
        topics_hash: changes with the topics of the topology and their partitions; 0: no topic.
        validated_epoch: epoch of the topology for which all topics exist; -1 if the topics do not fit.
        configs: what the assignor used, by name, sorted.
    """

    epoch: int
    topics_hash: int = 0
    validated_epoch: int = -1
    configs: tuple[tuple[str, str], ...] = ()


StreamsValue: TypeAlias = GroupEpoch | StreamsMember | TargetEpoch | Tasks | CurrentAssignment | Topology


@dataclass(frozen=True, slots=True)
class StreamsEntry:
    """A record. The kind of the key determines the type of the value; None is a tombstone."""

    key: StreamsKey
    value: StreamsValue | None
