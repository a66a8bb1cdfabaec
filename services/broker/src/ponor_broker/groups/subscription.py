"""The topics in a consumer's subscription.

To the group protocol a subscription is opaque. Only for members of protocol type `consumer` does
Kafka decode it, to decide whether offsets of a topic may expire or be deleted while the group has
members. All versions of the subscription start like version 0 (int16 version, then an array of
strings), so only that part is decoded (ConsumerProtocolSubscription.json, KIP-496).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_TOPIC_BYTES_MIN: Final = 2


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return every topic in the subscriptions; None if one of them is not a consumer's
    subscription.
    """
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
