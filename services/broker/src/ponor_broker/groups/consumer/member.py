"""A member of a consumer group: what it reported about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ponor_broker.groups.member import JoinProtocol

NO_TIMEOUT: Final = -1
MEMBER_BYTES: Final = 1_500
"""Memory of a member without its texts and partitions: measured, rounded up."""
TOPIC_BYTES: Final = 300
"""Memory of a subscription to one topic without its name, with its entries in the indexes: measured, rounded
up."""
_WIDE_CHARACTER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """What a member that uses the classic protocol sent with its JoinGroup: session timeout and assignors, of
    which there is at least one.
    """

    session_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]

    @property
    def protocol(self) -> JoinProtocol:
        """The protocol of the coordinator's answers: the one that the member prefers."""
        return self.protocols[0]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member, as it is stored.

    Attributes:
        topics: names of the subscribed topics.
        expression: regular expression of further topics; None or empty for none.
        assignor: the assignor that the member prefers; None for no preference.
        instance_id: Kafka's group.instance.id of a static member (KIP-345).
        rebalance_timeout_ms: longest time for a revocation.
        classic: what only a member with the classic protocol has; None for a member with heartbeats.
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
    classic: ClassicPart | None = None

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
        protocols = () if self.classic is None else self.classic.protocols
        of_protocols = sum(protocol.size_bytes for protocol in protocols)
        return MEMBER_BYTES + sum(_text_bytes(text) for text in texts if text) + of_topics + of_protocols


def _text_bytes(text: str) -> int:
    """Return the memory of a text's characters: one other than ASCII makes all of them wide."""
    return len(text) if text.isascii() else _WIDE_CHARACTER_BYTES * len(text)
