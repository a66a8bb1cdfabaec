"""A member of a consumer group: what it reported about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_TIMEOUT: Final = -1
MEMBER_BYTES: Final = 1_500
"""Memory of a member without its texts and partitions: measured, rounded up."""
TOPIC_BYTES: Final = 100
"""Memory of a subscription to one topic without its name."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member, as it is stored.

    Attributes:
        topics: names of the subscribed topics.
        expression: regular expression of further topics; None or empty for none.
        assignor: the assignor that the member prefers; None for no preference.
        instance_id: Kafka's group.instance.id of a static member (KIP-345).
        rebalance_timeout_ms: longest time for a revocation.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    expression: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    assignor: str | None = None

    @property
    def size_bytes(self) -> int:
        """Memory of the member."""
        texts = (
            self.member_id,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.expression,
            self.assignor,
        )
        of_topics = sum(map(len, self.topics)) + TOPIC_BYTES * len(self.topics)
        return MEMBER_BYTES + sum(len(text) for text in texts if text) + of_topics
