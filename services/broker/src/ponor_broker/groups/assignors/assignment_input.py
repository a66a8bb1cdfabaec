"""Interface of the assignors: what a group passes to one, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ponor_runtime.turns import Steps

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions of one member by topic id (16 bytes)."""
Targets: TypeAlias = dict[str, dict[bytes, frozenset[int]]]
"""Partitions by member id and topic id. Contains every member, and no empty set of partitions."""
Racks: TypeAlias = Mapping[bytes, Mapping[int, frozenset[str]]]
"""Racks of the replicas by topic id and partition."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member of the group, as the assignors see it.

    Attributes:
        topics: Ids of the subscribed topics. Those without a partition count are ignored.
        owned: The member's previous target.
        instance_id: Kafka's group.instance.id of a static member (KIP-345).
        rack_id: Kafka's client.rack.
    """

    topics: frozenset[bytes]
    owned: Assignment
    instance_id: str | None = None
    rack_id: str | None = None


class Assignor(Protocol):
    """A strategy that distributes partitions among the members of a group."""

    @property
    def name(self) -> str:
        """Name in Kafka's group.consumer.assignors and in ConsumerGroupHeartbeat."""

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int], racks: Racks | None
    ) -> Steps[Targets]:
        """Compute the target of each member id; equal arguments give equal targets.

        `partition_counts` has the number of partitions by topic id. The caller changes no argument until the
        last step has run. A step takes at most about 5 ms.
        """
