"""Open transactions that partition leaders report: list them, find hanging ones, abort one.

A transaction is hanging if it is open in a partition and no coordinator lists this partition in an open
transaction of the producer: then no coordinator will write the marker that ends it (KIP-664).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from ponor_cli.clients.coordinators import Brokers
from ponor_cli.clients.kafka_client import error_name
from ponor_cli.clients.reassignments import places_of
from ponor_cli.clients.transactions import (
    DescribedId,
    Filters,
    describe_all,
    list_ids,
)
from ponor_cli.errors import CommandError

Place: TypeAlias = tuple[str, int]
NO_OFFSET: Final = -1
PARTITIONS_PER_REQUEST: Final = 1_000
_CHANGES: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors of a partition that moved or was deleted after the metadata were read."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A producer's open transaction in one partition.

    Attributes:
        coordinator_epoch: the epoch in the producer's last marker; −1 if there is no marker yet.
        updated_ms: wall clock time of the last batch.
        owner: the transactional id whose coordinator ends it; None: the transaction is hanging.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    updated_ms: int
    owner: str | None = None

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


def find_open(brokers: Brokers, topic: str | None, partition: int | None) -> list[OpenTransaction]:
    """Return the open transactions of all partitions, of one topic, or of one partition, with their owners.

    Raises:
        CommandError: the topic or the partition does not exist, or a leader refuses.
    """
    leaders = _leaders(brokers, topic, partition)
    found = _with_owners(brokers, _read(brokers, leaders))
    if all(each.owner is not None for each in found):
        return found
    # A transaction that ended after the leader's answer has no owner. Ask the leaders again, so that it is
    # not reported as hanging.
    unowned = {each.place: leaders[each.place] for each in found if each.owner is None}
    again = {(each.place, each.producer_id, each.start_offset) for each in _read(brokers, unowned)}
    return [
        each
        for each in found
        if each.owner is not None or (each.place, each.producer_id, each.start_offset) in again
    ]


def abort_hanging(brokers: Brokers, place: Place, start_offset: int) -> OpenTransaction:
    """Append an abort marker for the hanging transaction that starts at this offset. Returns it.

    Raises:
        CommandError: there is no such transaction, its coordinator can still end it, or the leader refuses.
    """
    where = "{}-{}".format(*place)
    found = next((each for each in find_open(brokers, *place) if each.start_offset == start_offset), None)
    if found is None:
        raise CommandError(
            f"no open transaction starts at offset {start_offset} of {where}; `ponor transaction open"
            f" {place[0]}` lists them"
        )
    if found.owner is not None:
        raise CommandError(
            f"the transaction at offset {start_offset} of {where} is not hanging: it belongs to"
            f" transactional id {found.owner}, and must end in all its partitions;"
            f" use `ponor transaction abort {found.owner}`"
        )
    code = _append_abort(brokers, found)
    if code != ErrorCode.NONE:
        raise CommandError(
            f"the leader of {where} refused the abort: {error_name(code)}; {_remedy(code, place[0])}"
        )
    return found


def _append_abort(brokers: Brokers, hanging: OpenTransaction) -> int:
    marker = WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=hanging.topic, partition_indexes=[hanging.partition])],
        # As in Kafka: a partition without a marker of the producer accepts every coordinator epoch.
        coordinator_epoch=max(0, hanging.coordinator_epoch),
    )
    leader = brokers.of(_leaders(brokers, *hanging.place)[hanging.place])
    response = leader.call(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
    return response.markers[0].topics[0].partitions[0].error_code


def _remedy(code: int, topic: str) -> str:
    if code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}:
        return f"the producer has begun another transaction; `ponor transaction open {topic}` shows it"
    return "repeat the command"


def _leaders(brokers: Brokers, topic: str | None, partition: int | None) -> dict[Place, int]:
    """Return the leader of each partition.

    Raises:
        CommandError: the topic or the partition does not exist.
    """
    places = places_of(brokers.any, None if topic is None else [topic])
    leaders = {(each.topic, each.partition): each.leader_id for each in places}
    if topic is None or partition is None:
        return leaders
    if (topic, partition) not in leaders:
        raise CommandError(
            f"topic {topic} has no partition {partition}; it has partitions 0 to {len(leaders) - 1}"
        )
    return {(topic, partition): leaders[topic, partition]}


def _read(brokers: Brokers, leaders: dict[Place, int]) -> list[OpenTransaction]:
    """Return the open transactions of these partitions, in order and without owners."""
    found: list[OpenTransaction] = []
    by_leader: dict[int, list[Place]] = {}
    for place, node_id in leaders.items():
        by_leader.setdefault(node_id, []).append(place)
    for node_id, places in by_leader.items():
        if node_id not in brokers.node_ids:
            raise CommandError(
                "{}-{} has no live leader; `ponor partition list {}` shows the leaders".format(
                    *places[0], places[0][0]
                )
            )
        for first in range(0, len(places), PARTITIONS_PER_REQUEST):
            found += _read_at(brokers, node_id, places[first : first + PARTITIONS_PER_REQUEST])
    return sorted(found, key=lambda each: (each.topic, each.partition, each.start_offset))


def _read_at(brokers: Brokers, node_id: int, places: Sequence[Place]) -> Iterable[OpenTransaction]:
    wanted: dict[str, list[int]] = {}
    for topic, index in places:
        wanted.setdefault(topic, []).append(index)
    request = DescribeProducersRequest(topics=[TopicRequest(name, rows) for name, rows in wanted.items()])
    response = brokers.of(node_id).call(request, DescribeProducersResponse)
    for answered in response.topics:
        for row in answered.partitions:
            if row.error_code != ErrorCode.NONE:
                where = f"{answered.name}-{row.partition_index}"
                remedy = "repeat the command" if row.error_code in _CHANGES else row.error_message or ""
                raise CommandError(f"{where}: {error_name(row.error_code)}; {remedy}")
            for producer in row.active_producers:
                if producer.current_txn_start_offset != NO_OFFSET:
                    yield OpenTransaction(
                        answered.name,
                        row.partition_index,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        producer.last_timestamp,
                    )


def _with_owners(brokers: Brokers, found: Sequence[OpenTransaction]) -> list[OpenTransaction]:
    if not found:
        return []
    producer_ids = sorted({each.producer_id for each in found})
    ids = list_ids(brokers, Filters(producer_ids=producer_ids))
    described = describe_all(brokers, [each.transactional_id for each in ids])
    return [replace(each, owner=_owner(each, described)) for each in found]


def _owner(open_here: OpenTransaction, described: Collection[DescribedId]) -> str | None:
    return next(
        (
            each.transactional_id
            for each in described
            if each.producer_id == open_here.producer_id
            and each.is_open
            and open_here.place in each.partitions
        ),
        None,
    )
