"""Identifiers of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition number: the key of the controller's rows."""


@dataclass(frozen=True, slots=True)
class PartitionId:
    """Topic id (16 bytes), topic name and partition number."""

    topic_id: bytes
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def key(self) -> PartitionKey:
        """The identifier without the name."""
        return self.topic_id, self.index
