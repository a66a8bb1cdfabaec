"""Read the audited offsets with a Kafka consumer: librdkafka, which shares no code with the object readers.

One consumer without a group reads the ranges of an audit. Rows are counted and digested, not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ponor_spark.errors import ClusterUnreachableError
from ponor_spark.jobs.audit.findings import DIGEST_MODULUS
from ponor_spark.jobs.audit.row_digest import digest_row
from ponor_spark.offsets import OffsetRange

SILENCE_S_MAX: Final = 60.0
"""Maximum time without a message or an end-of-partition event."""
MESSAGES_AT_A_TIME: Final = 1_000


@dataclass(slots=True)
class Seen:
    """Result of one partition."""

    rows: int = 0
    digest: int = 0
    is_done: bool = False


def consume(
    bootstrap: Sequence[str], ranges: Sequence[OffsetRange], settings: Mapping[str, str]
) -> dict[tuple[str, int], Seen]:
    """Read the ranges to their ends.

    Args:
        bootstrap: brokers, HOST:PORT.
        ranges: the ranges to read.
        settings: librdkafka settings, for example isolation.level.

    Raises:
        ClusterUnreachableError: no message arrives for SILENCE_S_MAX.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    seen = {(each.topic, each.partition): Seen() for each in ranges}
    ends = {(each.topic, each.partition): each.end_offset for each in ranges}
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(bootstrap),
            "group.id": "ponor-verify",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(each.topic, each.partition, each.start_offset) for each in ranges])
        while not all(each.is_done for each in seen.values()):
            # consume() waits for its full timeout unless it gets the requested number of messages.
            first = consumer.poll(SILENCE_S_MAX)
            if first is None:
                raise ClusterUnreachableError(
                    f"kafka.bootstrap.servers: a consumer received nothing for {SILENCE_S_MAX:.0f} s; check"
                    " that the brokers run, then verify again"
                )
            for message in (first, *consumer.consume(MESSAGES_AT_A_TIME, 0)):
                place = str(message.topic()), int(message.partition() or 0)
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
                    raise ClusterUnreachableError(
                        f"kafka.bootstrap.servers: a consumer of {place[0]}-{place[1]} failed: {error};"
                        " check the broker's log"
                    )
                _take(message, seen[place], ends[place], is_end=error is not None)
    finally:
        consumer.close()
    return seen


def _take(message: Any, seen: Seen, end: int, *, is_end: bool) -> None:
    offset = message.offset()
    if is_end or offset >= end:
        seen.is_done = seen.is_done or offset >= end
        return
    seen.rows += 1
    digest = digest_row(offset, message.timestamp()[1], message.key(), message.value(), message.headers())
    seen.digest = (seen.digest + digest) % DIGEST_MODULUS
    seen.is_done = offset + 1 >= end
