"""Which partition: the name under which everything in `partitions/` and its callers speak of one.

What lives here: two types without behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and number: the key of the controller's rows."""


@dataclass(frozen=True, slots=True)
class PartitionId:
    """Which partition: the topic's id (16 bytes) and name, and the number."""

    topic_id: bytes
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def key(self) -> PartitionKey:
        """The same without the name."""
        return self.topic_id, self.index
