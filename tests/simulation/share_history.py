"""The history of the consumers of one share group, and the search for anomalies in it (KIP-932).

Consumers note which records they acquired, and how they acknowledged them. A record has at most one holder at
a time; one that is accepted or rejected is never delivered again; every record becomes final.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from ponor_cluster_simulation.histories.transactions import Anomaly

Record: TypeAlias = tuple[int, int]
"""Partition and offset."""


class Kind(Enum):
    """What a consumer wants for a record that it holds."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"

    @property
    def is_final(self) -> bool:
        """Whether the record must not be delivered again."""
        return self in {Kind.ACCEPT, Kind.REJECT}


@dataclass(slots=True)
class Acquisition:
    """One delivery of a record to a consumer.

    Attributes:
        term: leader epoch of the partition. A new leader forgets all locks, so they end with the term.
        count: delivery count in the answer.
        asked_s: when the consumer sent the request.
        got_s: when it received the record.
        until_s: it surely holds the record until then: until the lock may expire, counted from `asked_s`, or
            until it sent a final acknowledgement or a release.
    """

    consumer: str
    record: Record
    term: int
    count: int
    asked_s: float
    got_s: float
    until_s: float


@dataclass(slots=True)
class Acknowledgement:
    """A consumer's acknowledgement of a record.

    Attributes:
        told_s: when the broker confirmed it; None without a confirmation.
        is_refused: the broker refused it, so it had no effect.
    """

    acquisition: Acquisition
    kind: Kind
    asked_s: float
    told_s: float | None = None
    is_refused: bool = False


@dataclass(slots=True)
class ShareHistory:
    """What all consumers of a group did and saw.

    Attributes:
        limit: delivery count at which a record is archived instead of becoming available again.
        lock_s: time for which a lock surely lasts.
    """

    limit: int
    lock_s: float
    acquisitions: list[Acquisition] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)

    def acquired(
        self, consumer: str, record: Record, *, term: int, count: int, asked_s: float, got_s: float
    ) -> Acquisition:
        """Note a record that a consumer received."""
        until_s = max(got_s, asked_s + self.lock_s)
        acquisition = Acquisition(consumer, record, term, count, asked_s, got_s, until_s)
        self.acquisitions.append(acquisition)
        return acquisition

    def acknowledging(self, acquisition: Acquisition, kind: Kind, now_s: float) -> Acknowledgement:
        """Note that a consumer sends an acknowledgement. Unless it renews, it no longer holds the record."""
        if kind is not Kind.RENEW:
            acquisition.until_s = min(acquisition.until_s, now_s)
        acknowledgement = Acknowledgement(acquisition, kind, now_s)
        self.acknowledgements.append(acknowledgement)
        return acknowledgement

    def confirmed(self, acknowledgement: Acknowledgement, now_s: float) -> None:
        """Note a confirmation. A renewed lock lasts again, counted from the request."""
        acknowledgement.told_s = now_s
        acquisition = acknowledgement.acquisition
        if acknowledgement.kind is Kind.RENEW and now_s < acquisition.until_s:
            acquisition.until_s = max(acquisition.until_s, acknowledgement.asked_s + self.lock_s)


def find_anomalies(history: ShareHistory, logs: Mapping[int, Sequence[int]] | None = None) -> list[Anomaly]:
    """Search a history. `logs` are the offsets of all records by partition, when the consumers are done."""
    by_record: dict[Record, list[Acquisition]] = defaultdict(list)
    for acquisition in history.acquisitions:
        by_record[acquisition.record].append(acquisition)
    final: dict[Record, list[Acknowledgement]] = defaultdict(list)
    for acknowledgement in history.acknowledgements:
        if acknowledgement.kind.is_final and not acknowledgement.is_refused:
            final[acknowledgement.acquisition.record].append(acknowledgement)
    return [
        *_two_holders(by_record),
        *_counts(history.limit, by_record),
        *_without_lock(history, by_record),
        *_after_the_end(by_record, final),
        *_never_final(history.limit, by_record, final, logs or {}),
    ]


def _two_holders(by_record: Mapping[Record, Sequence[Acquisition]]) -> Iterator[Anomaly]:
    """Find records that are delivered while another delivery of the same term holds them."""
    for record, acquisitions in by_record.items():
        newest: dict[int, Acquisition] = {}
        for each in sorted(acquisitions, key=lambda one: one.got_s):
            holder = newest.get(each.term)
            if holder is not None and each.got_s < holder.until_s:
                yield Anomaly(
                    "two holders",
                    f"{each.consumer} got {record} at {each.got_s:.3f} s, but {holder.consumer} holds it"
                    f" until {holder.until_s:.3f} s",
                )
            if holder is None or holder.until_s < each.until_s:
                newest[each.term] = each


def _counts(limit: int, by_record: Mapping[Record, Sequence[Acquisition]]) -> Iterator[Anomaly]:
    """Find deliveries above the limit, and counts that do not rise within a term."""
    for record, acquisitions in by_record.items():
        before: dict[int, int] = {}
        for each in sorted(acquisitions, key=lambda one: one.got_s):
            if each.count > limit:
                yield Anomaly("delivered too often", f"{each.consumer} got {record} as number {each.count}")
            if each.count <= before.get(each.term, 0):
                yield Anomaly(
                    "delivery count",
                    f"{each.consumer} got {record} as number {each.count} after number {before[each.term]}",
                )
            before[each.term] = max(each.count, before.get(each.term, 0))


def _without_lock(
    history: ShareHistory, by_record: Mapping[Record, Sequence[Acquisition]]
) -> Iterator[Anomaly]:
    """Find confirmed acknowledgements of a consumer that had lost its lock to another delivery."""
    for each in history.acknowledgements:
        if each.told_s is None:
            continue
        own = each.acquisition
        for other in by_record[own.record]:
            if other is not own and own.got_s < other.got_s < each.asked_s and each.told_s < other.until_s:
                yield Anomaly(
                    "acknowledged without a lock",
                    f"{own.consumer} acknowledged {own.record} at {each.told_s:.3f} s, but {other.consumer}"
                    f" got it at {other.got_s:.3f} s",
                )


def _after_the_end(
    by_record: Mapping[Record, Sequence[Acquisition]],
    final: Mapping[Record, Sequence[Acknowledgement]],
) -> Iterator[Anomaly]:
    """Find records that are delivered or made final after a confirmed final acknowledgement."""
    for record, acknowledgements in final.items():
        confirmed = [each for each in acknowledgements if each.told_s is not None]
        if len(confirmed) > 1:
            names = ", ".join(f"{each.kind.value} of {each.acquisition.consumer}" for each in confirmed)
            yield Anomaly("acknowledged twice", f"{record}: {names}")
        for each in confirmed:
            for again in by_record[record]:
                if again.asked_s > (each.told_s or 0.0):
                    yield Anomaly(
                        "delivered after the end",
                        f"{again.consumer} got {record} at {again.got_s:.3f} s, but"
                        f" {each.acquisition.consumer} had a confirmed {each.kind.value} at"
                        f" {each.told_s:.3f} s",
                    )


def _never_final(
    limit: int,
    by_record: Mapping[Record, Sequence[Acquisition]],
    final: Mapping[Record, Sequence[Acknowledgement]],
    logs: Mapping[int, Sequence[int]],
) -> Iterator[Anomaly]:
    """Find records without a final acknowledgement, although they were not delivered up to the limit."""
    for partition, offsets in logs.items():
        for offset in offsets:
            record = (partition, offset)
            deliveries = by_record.get(record, ())
            if not final.get(record) and all(each.count < limit for each in deliveries):
                yield Anomaly(
                    "lost record", f"{record} was delivered {len(deliveries)} times, and is not final"
                )
