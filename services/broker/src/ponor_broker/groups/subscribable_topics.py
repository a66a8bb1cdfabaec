"""The topics of the image, for consumer groups: a version that changes only with topics and partitions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.groups.consumer.topics import Topic


class SubscribableTopics:
    """Implements `ImageTopics`. `changed` must be called when topics or partitions change."""

    def __init__(self, directory: TopicDirectory) -> None:
        self._directory = directory
        self._version: int | None = None

    @property
    def version(self) -> int:
        """Index of the image at the newest change that this broker saw, or at the first use."""
        if self._version is None:
            self._version = self._directory.version
        return self._version

    def changed(self) -> None:
        """Note that topics or partitions changed."""
        self._version = None

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        topic_id, partitions = self._directory.topic_id(name), self._directory.partition_count(name)
        return None if topic_id is None or partitions is None else Topic(topic_id.bytes, partitions)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a topic; None if it does not exist."""
        return self._directory.topic_name(UUID(bytes=topic_id))

    def names(self) -> Sequence[str]:
        """Return the names of all topics."""
        return self._directory.names()
