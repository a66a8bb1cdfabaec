"""A member of a consumer group: what it reported about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_TIMEOUT: Final = -1
MEMBER_BYTES: Final = 1_500
"""Memory of a member without its texts and partitions: measured, rounded up."""
TOPIC_BYTES: Final = 300
"""Memory of a subscription to one topic without its name, with its entries in the indexes: measured, rounded
up."""
_WIDE_CHARACTER_BYTES: Final = 4


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
        of_topics = sum(map(_text_bytes, self.topics)) + TOPIC_BYTES * len(self.topics)
        return MEMBER_BYTES + sum(_text_bytes(text) for text in texts if text) + of_topics


def _text_bytes(text: str) -> int:
    """Return the memory of a text's characters: one other than ASCII makes all of them wide."""
    return len(text) if text.isascii() else _WIDE_CHARACTER_BYTES * len(text)
