"""The history of the consumers of one share group, and the search for anomalies in it (KIP-932).

Consumers note which records they acquired, and how they acknowledged them. A record has at most one holder at
a time; one that is accepted or rejected is never delivered again; every record becomes final.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from ponor_cluster_simulation.histories.transactions import Anomaly

Record: TypeAlias = tuple[int, int]
"""Partition and offset."""
LATE_S_MAX: Final = 6.0
"""A request without an answer arrives at most this long after it was sent."""


class Kind(IntEnum):
    """What a consumer wants for a record that it holds; the numbers are those of the protocol."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4

    @property
    def is_final(self) -> bool:
        """Whether the record must not be delivered again."""
        return self in {Kind.ACCEPT, Kind.REJECT}


class Election(NamedTuple):
    """The time from which a node leads a partition."""

    at_s: float
    node: int
    epoch: int


@dataclass(slots=True, eq=False)
class Acquisition:
    """One delivery of a record to a consumer.

    Attributes:
        node: the broker that delivered it.
        count: delivery count in the answer.
        asked_s: when the consumer sent the request.
        got_s: when it received the record.
        seen_s: its share session surely lasted until then: it sent a request that the session answered.
        lock_ends_s: its lock surely lasts until then, counted from the request that acquired or renewed it.
        ended_s: when it sent an acknowledgement other than a renewal.
    """

    consumer: str
    record: Record
    node: int
    count: int
    asked_s: float
    got_s: float
    seen_s: float
    lock_ends_s: float
    ended_s: float = math.inf


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """A consumer's acknowledgement of a record.

    Attributes:
        told_s: when the broker confirmed or refused it; None if the effect is not known.
        is_refused: the broker refused it, so it had no effect.
    """

    acquisition: Acquisition
    kind: Kind
    asked_s: float
    told_s: float | None = None
    is_refused: bool = False

    @property
    def is_confirmed(self) -> bool:
        """Whether it had an effect for certain."""
        return self.told_s is not None and not self.is_refused


@dataclass(slots=True)
class ShareHistory:
    """What all consumers of a group did and saw.

    Attributes:
        limit: delivery count at which a record is archived instead of becoming available again.
        lock_s: time for which a lock surely lasts.
        stale_s: a replaced leader may deliver for this long.
        elections: the changes of each partition's leader, in order.
        refusals: acknowledgements that were refused together because the consumer does not hold a record.
        unanswered: when requests were sent whose answers were lost, and may have had records of a partition.
    """

    limit: int
    lock_s: float
    stale_s: float
    acquisitions: list[Acquisition] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    elections: dict[int, list[Election]] = field(default_factory=lambda: defaultdict(list))
    refusals: list[Sequence[Acknowledgement]] = field(default_factory=list)
    unanswered: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def acquired(
        self, consumer: str, record: Record, *, node: int, count: int, asked_s: float, got_s: float
    ) -> Acquisition:
        """Note a record that a consumer received."""
        acquisition = Acquisition(
            consumer, record, node, count, asked_s, got_s, got_s, max(got_s, asked_s + self.lock_s)
        )
        self.acquisitions.append(acquisition)
        return acquisition

    def acknowledging(self, acquisition: Acquisition, kind: Kind, now_s: float) -> Acknowledgement:
        """Note that a consumer sends an acknowledgement. Unless it renews, it no longer holds the record."""
        if kind is not Kind.RENEW:
            acquisition.ended_s = min(acquisition.ended_s, now_s)
        acknowledgement = Acknowledgement(acquisition, kind, now_s)
        self.acknowledgements.append(acknowledgement)
        return acknowledgement

    def confirmed(self, acknowledgement: Acknowledgement, now_s: float) -> None:
        """Note a confirmation. A renewed lock lasts again, counted from the request."""
        acknowledgement.told_s = now_s
        acquisition = acknowledgement.acquisition
        if acknowledgement.kind is Kind.RENEW and now_s < acquisition.lock_ends_s:
            acquisition.lock_ends_s = max(acquisition.lock_ends_s, acknowledgement.asked_s + self.lock_s)

    def refused(self, together: Sequence[Acknowledgement], now_s: float) -> None:
        """Note acknowledgements of one partition that were refused, all or none."""
        for each in together:
            each.is_refused, each.told_s = True, now_s
        self.refusals.append(together)

    def elected(self, partition: int, node: int, epoch: int, at_s: float) -> None:
        """Note the leader of a partition; nothing happens if it stays."""
        elections = self.elections[partition]
        if not elections or elections[-1][1:] != (node, epoch):
            elections.append(Election(at_s, node, epoch))

    def leads(self, node: int, partition: int, at_s: float) -> bool:
        """Whether a node was the elected leader at a time."""
        elections = self.elections[partition]
        number = bisect_right(elections, at_s, key=lambda each: each.at_s)
        return number > 0 and elections[number - 1].node == node

    def led_until(self, partition: int, at_s: float) -> float:
        """Return when the leader of a time was replaced, or elected again."""
        elections = self.elections[partition]
        number = bisect_right(elections, at_s, key=lambda each: each.at_s)
        return elections[number].at_s if number < len(elections) else math.inf

    def held_until(self, acquisition: Acquisition) -> float:
        """Return until when the consumer surely held the record; the time of the delivery if never."""
        partition = acquisition.record[0]
        if not self.leads(acquisition.node, partition, acquisition.asked_s):
            return acquisition.got_s
        return min(
            acquisition.seen_s,
            acquisition.lock_ends_s,
            acquisition.ended_s,
            self.led_until(partition, acquisition.asked_s),
        )

    def may_be_stale(self, acquisition: Acquisition) -> bool:
        """Whether a leader that had just been replaced may have delivered the record."""
        partition, _ = acquisition.record
        return (
            not self.leads(acquisition.node, partition, acquisition.asked_s)
            and self.led_until(partition, acquisition.asked_s - self.stale_s) <= acquisition.got_s
        )


def find_anomalies(history: ShareHistory, ends: Mapping[int, int] | None = None) -> list[Anomaly]:
    """Search a history; `ends` are the ends of all partitions when the consumers are done."""
    by_record: dict[Record, list[Acquisition]] = defaultdict(list)
    for acquisition in history.acquisitions:
        by_record[acquisition.record].append(acquisition)
    final: dict[Record, list[Acknowledgement]] = defaultdict(list)
    for acknowledgement in history.acknowledgements:
        if acknowledgement.kind.is_final and not acknowledgement.is_refused:
            final[acknowledgement.acquisition.record].append(acknowledgement)
    return [
        *_two_holders(history, by_record),
        *_counts(history, by_record),
        *_without_lock(history, by_record),
        *_refused_holders(history),
        *_after_the_end(history, by_record, final),
        *_twice(history, final),
        *_never_final(history, by_record, final, ends or {}),
    ]


def _two_holders(
    history: ShareHistory, by_record: Mapping[Record, Sequence[Acquisition]]
) -> Iterator[Anomaly]:
    """Find records that are delivered while another consumer surely holds them."""
    for record, acquisitions in by_record.items():
        for holder in acquisitions:
            until_s = history.held_until(holder)
            for each in acquisitions:
                if holder.got_s <= each.asked_s and each.got_s < until_s and not history.may_be_stale(each):
                    yield Anomaly(
                        "two holders",
                        f"{each.consumer} got {record} at {each.got_s:.3f} s, but {holder.consumer} held it"
                        f" from {holder.got_s:.3f} s to {until_s:.3f} s",
                    )


def _counts(history: ShareHistory, by_record: Mapping[Record, Sequence[Acquisition]]) -> Iterator[Anomaly]:
    """Find deliveries above the limit, and counts that do not rise although the one before is durable, or
    known to the same leader.
    """
    released: dict[Record, list[Acknowledgement]] = defaultdict(list)
    for each in history.acknowledgements:
        if each.kind is Kind.RELEASE and each.is_confirmed:
            released[each.acquisition.record].append(each)
    for record, acquisitions in by_record.items():
        for one in acquisitions:
            if one.count > history.limit:
                yield Anomaly("delivered too often", f"{one.consumer} got {record} as number {one.count}")
        for one, later in combinations(sorted(acquisitions, key=lambda each: each.asked_s), 2):
            if later.count <= one.count and _same_term(history, one, later):
                yield Anomaly("delivery count", _lower_count(record, one, later))
        for release in released[record]:
            one, told_s = release.acquisition, release.told_s or 0.0
            for later in acquisitions:
                if later.asked_s > told_s and later.count <= one.count and not history.may_be_stale(later):
                    yield Anomaly("delivery count", _lower_count(record, one, later))


def _same_term(history: ShareHistory, one: Acquisition, later: Acquisition) -> bool:
    """Whether one leader delivered both, in this order, in one term."""
    return (
        one.node == later.node
        and one.got_s <= later.asked_s
        and history.leads(one.node, one.record[0], one.asked_s)
        and history.led_until(one.record[0], one.asked_s) > later.got_s
    )


def _lower_count(record: Record, one: Acquisition, later: Acquisition) -> str:
    return (
        f"{later.consumer} got {record} as number {later.count} at {later.got_s:.3f} s, but {one.consumer}"
        f" had got it as number {one.count} at {one.got_s:.3f} s"
    )


def _without_lock(
    history: ShareHistory, by_record: Mapping[Record, Sequence[Acquisition]]
) -> Iterator[Anomaly]:
    """Find confirmed acknowledgements during which another consumer surely held the record."""
    for each in history.acknowledgements:
        if not each.is_confirmed or each.kind is Kind.RENEW:
            continue
        own, told_s = each.acquisition, each.told_s or 0.0
        for other in by_record[own.record]:
            is_other = other.consumer != own.consumer
            if is_other and other.got_s <= each.asked_s and told_s < history.held_until(other):
                yield Anomaly(
                    "acknowledged without a lock",
                    f"{own.consumer} acknowledged {own.record} at {told_s:.3f} s, but {other.consumer}"
                    f" held it since {other.got_s:.3f} s",
                )


def _refused_holders(history: ShareHistory) -> Iterator[Anomaly]:
    """Find refusals although the consumer surely held all records of the acknowledgement."""
    seen: dict[Acquisition, int] = defaultdict(int)
    for each in history.acknowledgements:
        if each.kind is not Kind.RENEW:
            seen[each.acquisition] += 1
    for together in history.refusals:
        if all(_held_throughout(history, each) and seen[each.acquisition] <= 1 for each in together):
            first = together[0]
            yield Anomaly(
                "refused a holder",
                f"{first.acquisition.consumer} may not acknowledge {first.acquisition.record} at"
                f" {first.told_s:.3f} s, but has held it since {first.acquisition.got_s:.3f} s",
            )


def _held_throughout(history: ShareHistory, each: Acknowledgement) -> bool:
    """Whether the lock lasted until the answer. The refusal shows that the session did."""
    own, told_s = each.acquisition, each.told_s or math.inf
    partition, _ = own.record
    return (
        own.seen_s >= each.asked_s
        and told_s < own.lock_ends_s
        and history.leads(own.node, partition, own.asked_s)
        and told_s < history.led_until(partition, own.asked_s)
    )


def _after_the_end(
    history: ShareHistory,
    by_record: Mapping[Record, Sequence[Acquisition]],
    final: Mapping[Record, Sequence[Acknowledgement]],
) -> Iterator[Anomaly]:
    """Find records that are delivered after a confirmed final acknowledgement."""
    for record, acknowledgements in final.items():
        for each in acknowledgements:
            if each.told_s is None:
                continue
            for again in by_record[record]:
                if again.asked_s > each.told_s and not history.may_be_stale(again):
                    yield Anomaly(
                        "delivered after the end",
                        f"{again.consumer} got {record} at {again.got_s:.3f} s, but"
                        f" {each.acquisition.consumer} had a confirmed {each.kind.name} at"
                        f" {each.told_s:.3f} s",
                    )


def _twice(history: ShareHistory, final: Mapping[Record, Sequence[Acknowledgement]]) -> Iterator[Anomaly]:
    """Find records with two confirmed final acknowledgements. Acknowledgements below the start offset are
    confirmed without an effect, so a later delivery must show that the start was not higher.
    """
    last_asked_s: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for each in history.acquisitions:
        last_asked_s[each.record[0]].append((each.record[1], each.asked_s))
    for record, acknowledgements in final.items():
        confirmed = [each for each in acknowledgements if each.told_s is not None]
        for one, other in combinations(confirmed, 2):
            told_s = max(one.told_s or 0.0, other.told_s or 0.0)
            partition, offset = record
            if any(low <= offset and asked_s > told_s for low, asked_s in last_asked_s[partition]):
                yield Anomaly(
                    "acknowledged twice",
                    f"{record}: {one.kind.name} of {one.acquisition.consumer} and {other.kind.name} of"
                    f" {other.acquisition.consumer}",
                )


def _never_final(
    history: ShareHistory,
    by_record: Mapping[Record, Sequence[Acquisition]],
    final: Mapping[Record, Sequence[Acknowledgement]],
    ends: Mapping[int, int],
) -> Iterator[Anomaly]:
    """Find records without a final acknowledgement, although they were not delivered up to the limit.

    The group begins at the end of the log, so its first record is the first delivered one.
    """
    for partition, end in ends.items():
        start = min((offset for index, offset in by_record if index == partition), default=end)
        for offset in range(start, end):
            record = (partition, offset)
            if final.get(record):
                continue
            deliveries = sorted(by_record.get(record, ()), key=lambda each: each.got_s)
            reached = max((each.count for each in deliveries), default=0)
            since_s = deliveries[-1].asked_s - LATE_S_MAX if deliveries else 0.0
            unseen = sum(asked_s >= since_s for asked_s in history.unanswered[partition])
            if reached + unseen < history.limit:
                yield Anomaly(
                    "lost record",
                    f"{record} was delivered {len(deliveries)} times, {reached} at most by its count, and is"
                    " not final",
                )
