"""Moves of partitions as Kafka's own protocol asks for them and shows them (KIP-455), so that any broker of any kind can be asked.

What lives here: requests and answers, no words for people. A move is asked for by naming the broker that is to hold the partition alone; that is what there is where
replication is the object store's business. In a cluster that keeps several replicas this would drop all others, so there it is refused.
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
GLANCE_S: Final = 0.1
WAIT_S_MAX: Final = 600.0
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Where a partition is. `target_id` is None unless it moves; `leader_id` is -1 while nobody leads it."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    target_id: int | None


def places_of(client: KafkaClient, topics: Sequence[str] | None) -> list[PartitionPlace]:
    """All partitions of these topics, or of all, in order.

    Raises:
        CommandError: a topic is not there.
    """
    moving = moves_under_way(client, None)
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


def moves_under_way(
    client: KafkaClient, wanted: Collection[tuple[str, int]] | None
) -> dict[tuple[str, int], int]:
    """Targets of the moves that are under way: of these partitions, or of all.

    Raises:
        CommandError: the broker refuses.
    """
    topics = None
    if wanted is not None:
        topics = [
            ListPartitionReassignmentsTopics(
                name=name, partition_indexes=[partition for topic, partition in wanted if topic == name]
            )
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


def ask_for(client: KafkaClient, topic: str, partitions: Sequence[int], target_id: int | None) -> None:
    """Begin moves to a broker, or cancel those that are under way (None).

    Raises:
        CommandError: the first partition that is refused, and why.
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
                    raise CommandError(f"{what} is not moving; `ponor partition list {topic}` shows what is")
                raise CommandError(_sentence(what, row.error_code, row.error_message))


def follow(client: KafkaClient, topic: str, partitions: Sequence[int]) -> Iterator[list[int]]:
    """Those that still move, at every change, until none does.

    Raises:
        CommandError: some move for longer than `WAIT_S_MAX`.
    """
    deadline = time.monotonic() + WAIT_S_MAX
    wanted = {(topic, number) for number in partitions}
    seen: list[int] | None = None
    while seen != []:
        if time.monotonic() > deadline:
            raise CommandError(
                f"{topic} {seen} still move after {WAIT_S_MAX:.0f} s; `ponor partition list {topic}` shows them"
            )
        under_way = moves_under_way(client, wanted)
        moving = sorted(number for name, number in under_way if (name, number) in wanted)
        if moving != seen:
            seen = moving
            yield moving
        if moving:
            time.sleep(GLANCE_S)


def _sentence(what: str, code: int, message: str | None) -> str:
    return f"{what}: {error_name(code)}{f' ({message})' if message else ''}"
