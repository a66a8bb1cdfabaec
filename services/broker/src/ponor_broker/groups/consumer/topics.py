"""The topics of the image to which members may subscribe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol


class Topic(NamedTuple):
    """An existing topic."""

    topic_id: bytes
    partitions: int


class ImageTopics(Protocol):
    """Topics of the image."""

    @property
    def version(self) -> int:
        """A number that rises when topics or partitions are created or deleted; one broker's numbers can be
        compared with another's.
        """
        ...

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a topic; None if it does not exist."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of all topics."""
        ...


def existing(topics: ImageTopics, names: Iterable[str]) -> dict[str, Topic]:
    """Return the topics that exist."""
    found = ((name, topics.find(name)) for name in names)
    return {name: topic for name, topic in found if topic is not None}


def hash_of(topics: Mapping[str, Topic]) -> int:
    """Return a signed 64-bit hash of names, ids and numbers of partitions; 0 without topics."""
    if not topics:
        return 0
    digest = blake2b(digest_size=8)
    for name, (topic_id, partitions) in sorted(topics.items()):
        digest.update(f"{name}\0{partitions}\0".encode())
        digest.update(topic_id)
    return int.from_bytes(digest.digest(), "big", signed=True)
