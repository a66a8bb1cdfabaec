"""The topics in a consumer's subscription, as far as the coordinator must know them.

To the group protocol a subscription is opaque bytes. Only for members of protocol type `consumer` does Kafka look into it, for two
questions: may the offsets of a topic expire while the group lives, and may they be deleted. All versions of the subscription begin as
version 0 does (int16 version, then an array of strings), so nothing more than that is read (ConsumerProtocolSubscription.json, KIP-496).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_TOPIC_BYTES_MIN: Final = 2


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Every topic that one of the subscriptions names; None when one of them is no consumer's subscription."""
    topics: set[str] = set()
    for subscription in subscriptions:
        read = _topics_of(subscription)
        if read is None:
            return None
        topics.update(read)
    return frozenset(topics)


def _topics_of(subscription: bytes) -> list[str] | None:
    try:
        version, count = struct.unpack_from(">hi", subscription)
        if version < 0 or not 0 <= count <= len(subscription) // _TOPIC_BYTES_MIN:
            return None
        topics, position = [], 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, position)
            position += 2
            if length < 0 or position + length > len(subscription):
                return None
            topics.append(subscription[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
