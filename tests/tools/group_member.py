"""A member of a group with librdkafka: prints what it commits, as java/GroupMember.java does.

Usage: python group_member.py BOOTSTRAP TOPIC GROUP PROTOCOL
"""

from __future__ import annotations

import select
import sys
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

_CLASSIC: Final = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": "60000"}


def main(bootstrap: str, topic: str, group: str, protocol: str) -> None:
    """Read and commit until standard input ends."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.poll.interval.ms": "600000",
    }
    consumer = Consumer(settings | (_CLASSIC if protocol == "classic" else {}))
    uncommitted: dict[int, tuple[int, int]] = {}

    def commit(partitions: Iterable[int]) -> None:
        wanted = [index for index in partitions if index in uncommitted]
        if wanted:
            rows = [TopicPartition(topic, index, uncommitted[index][1]) for index in wanted]
            done = consumer.commit(offsets=rows, asynchronous=False) or []
            for row in done:
                if row.error is None:
                    print("committed", row.partition, *uncommitted.pop(row.partition), flush=True)

    def assigned(changed: Iterable[TopicPartition], gained: bool) -> None:
        indexes = {row.partition for row in changed}
        held = {row.partition for row in consumer.assignment()}
        print("assigned", *sorted(held | indexes if gained else held - indexes), flush=True)

    def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        for row in partitions:
            if uncommitted.pop(row.partition, None):
                print("lost", row.partition, flush=True)
        assigned(partitions, False)

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        commit([row.partition for row in partitions])
        assigned(partitions, False)

    consumer.subscribe(
        [topic], on_assign=lambda _, gained: assigned(gained, True), on_revoke=revoked, on_lost=lost
    )
    leaving = False
    while not leaving or uncommitted:
        leaving = bool(select.select([sys.stdin], [], [], 0)[0])
        if leaving:
            consumer.pause(consumer.assignment())
        for message in consumer.consume(500, 0.1):
            index, offset = message.partition(), message.offset()
            assert message.error() is None, message.error()
            assert index is not None
            assert offset is not None
            begin, end = uncommitted.get(index, (offset, offset))
            assert end == offset, f"{index}: {offset} follows {end}"
            uncommitted[index] = begin, offset + 1
        try:
            commit(list(uncommitted))
        except KafkaException as refused:
            # The member keeps its partitions during a rebalance and commits them later.
            print("refused", refused, file=sys.stderr, flush=True)
    consumer.close()
    print("leaving", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
