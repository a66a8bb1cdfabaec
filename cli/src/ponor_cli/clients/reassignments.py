"""Moves of partitions with Kafka's own requests (KIP-455): start, cancel, and follow them.

A request names one target broker, because Ponor's partitions have one replica. In Apache Kafka the request
would drop the other replicas of a partition, so the commands refuse a partition with several replicas.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)

from ponor_cli.clients.kafka_client import KafkaClient, error_name
from ponor_cli.errors import CommandError, absent_topic

TIMEOUT_MS: Final = 30_000
POLL_S: Final = 0.1
WAIT_S_MAX: Final = 600.0
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """The place of a partition. `target_id` is None unless it moves; `leader_id` is -1 without a leader."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    target_id: int | None


def places_of(client: KafkaClient, topics: Sequence[str] | None) -> list[PartitionPlace]:
    """Return the partitions of these topics, or of all topics, in order.

    Raises:
        CommandError: a topic does not exist.
    """
    moving = current_moves(client, None)
    places = []
    for topic in client.metadata(None if topics is None else list(topics)).topics:
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise absent_topic(name)
        if topic.error_code != ErrorCode.NONE:
            raise CommandError(f"topic {name}: {error_name(topic.error_code)}")
        places += [
            PartitionPlace(
                name,
                row.partition_index,
                row.leader_id,
                row.leader_epoch,
                tuple(row.replica_nodes),
                moving.get((name, row.partition_index)),
            )
            for row in topic.partitions
        ]
    return sorted(places, key=lambda place: (place.topic, place.partition))


def current_moves(
    client: KafkaClient, wanted: Collection[tuple[str, int]] | None
) -> dict[tuple[str, int], int]:
    """Return the targets of the current moves, for these partitions or for all.

    Raises:
        CommandError: the broker refuses.
    """
    topics = None
    if wanted is not None:
        topics = [
            ListPartitionReassignmentsTopics(name, [number for topic, number in wanted if topic == name])
            for name in sorted({topic for topic, _ in wanted})
        ]
    request = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=topics)
    response = client.call(request, ListPartitionReassignmentsResponse)
    if response.error_code != ErrorCode.NONE:
        raise CommandError(_sentence("moves", response.error_code, response.error_message))
    return {
        (topic.name, row.partition_index): row.adding_replicas[0]
        for topic in response.topics
        for row in topic.partitions
        if row.adding_replicas
    }


def request_moves(client: KafkaClient, topic: str, partitions: Sequence[int], target_id: int | None) -> None:
    """Start moves to a broker; None cancels the current moves.

    Raises:
        CommandError: names the first refused partition and the reason.
    """
    replicas = None if target_id is None else [target_id]
    rows = [ReassignablePartition(partition_index=number, replicas=replicas) for number in partitions]
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=TIMEOUT_MS,
        allow_replication_factor_change=False,
        topics=[ReassignableTopic(name=topic, partitions=rows)],
    )
    response = client.call(request, AlterPartitionReassignmentsResponse)
    if response.error_code != ErrorCode.NONE:
        raise CommandError(_sentence("moves", response.error_code, response.error_message))
    for answer in response.responses:
        for row in answer.partitions:
            if row.error_code != ErrorCode.NONE:
                what = f"{answer.name}-{row.partition_index}"
                if row.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                    raise CommandError(
                        f"{what} is not moving; `ponor partition list {topic}` shows the moves"
                    )
                raise CommandError(_sentence(what, row.error_code, row.error_message))


def follow(client: KafkaClient, topic: str, partitions: Sequence[int]) -> Iterator[list[int]]:
    """Yield the partitions that still move, at every change, until none moves.

    Raises:
        CommandError: a partition moves for longer than `WAIT_S_MAX`.
    """
    deadline = time.monotonic() + WAIT_S_MAX
    wanted = {(topic, number) for number in partitions}
    seen: list[int] | None = None
    while seen != []:
        if time.monotonic() > deadline:
            raise CommandError(
                f"partitions {seen} of {topic} still move after {WAIT_S_MAX:.0f} s; `ponor partition list"
                f" {topic}` shows them"
            )
        current = current_moves(client, wanted)
        moving = sorted(number for name, number in current if (name, number) in wanted)
        if moving != seen:
            seen = moving
            yield moving
        if moving:
            time.sleep(POLL_S)


def _sentence(what: str, code: int, message: str | None) -> str:
    return f"{what}: {error_name(code)}{f' ({message})' if message else ''}"
