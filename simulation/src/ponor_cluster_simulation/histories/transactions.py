"""The history of transactional clients, and the search for anomalies in it.

Clients note what they wrote, what they read, and the answers. The final log, read with `read_committed` when
no transaction is open, decides what is visible. The anomalies are those of Adya et al. ("Generalized
Isolation Level Definitions", 2000) that Kafka's isolation level excludes, and those that exactly-once
excludes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

NO_OFFSET = -1
"""A group's offset before its first commit."""


class Outcome(Enum):
    """How a transaction ended, as its client knows it."""

    UNKNOWN = "unknown"
    """It is open, or the request for a commit has no final answer."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its client aborted it or was fenced, and sent no request for a commit."""


class Entry(NamedTuple):
    """The content of a record.

    Attributes:
        transaction: name of the transaction.
        client: name of the client, which begins the transaction's name.
        partition: where the client wrote it.
        number: counts a client's records of one partition.
        hop: number of transactions that have transformed the data since its origin.
        source: partition and offset of the record that it was made from; empty at the origin.
    """

    transaction: str
    client: str
    partition: int
    number: int
    hop: int = 0
    source: tuple[int, int] | tuple[()] = ()

    def encode(self, size_bytes: int = 0) -> bytes:
        """The record's value, padded."""
        source = ":".join(map(str, self.source))
        text = f"{self.transaction}/{self.client}/{self.partition}/{self.number}/{self.hop}/{source}/"
        return text.encode().ljust(size_bytes, b".")

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """The inverse of `encode`."""
        transaction, client, partition, number, hop, source, _ = data.decode().split("/")
        at = tuple(map(int, source.split(":"))) if source else ()
        assert len(at) in {0, 2}
        return cls(transaction, client, int(partition), int(number), int(hop), at)  # type: ignore[arg-type]


Log: TypeAlias = Mapping[int, Sequence[tuple[int, Entry]]]
"""Offsets and visible records by partition."""


@dataclass(slots=True)
class Transaction:
    """One transaction of a client.

    Attributes:
        group: the consumer group whose offsets it commits; empty without one.
        offsets: partition to the committed offset.
        written: records that the client sent. An acknowledged commit implies that all are stored.
        read: records that its data was made from.
    """

    name: str
    client: str
    group: str = ""
    offsets: dict[int, int] = field(default_factory=dict)
    written: list[Entry] = field(default_factory=list)
    read: list[Entry] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN


class CommittedRead(NamedTuple):
    """A reader's pass over the offsets [start, end) of a partition."""

    reader: str
    partition: int
    start: int
    end: int
    records: Sequence[tuple[int, Entry]]


class SeenOffset(NamedTuple):
    """A stable offset that a coordinator returned; `acknowledged`: the newest offset whose transaction was
    known to be committed before the request.
    """

    group: str
    partition: int
    offset: int
    acknowledged: int = NO_OFFSET


@dataclass(slots=True)
class TransactionHistory:
    """What all clients did and saw.

    Attributes:
        transactions: by name, in the order in which they began.
        transformed: a visible record with a hop below this number must be the source of exactly one record.
        final_offsets: group to the offsets at the end, by partition.
    """

    transformed: int = 0
    transactions: dict[str, Transaction] = field(default_factory=dict)
    reads: list[CommittedRead] = field(default_factory=list)
    seen_offsets: list[SeenOffset] = field(default_factory=list)
    final_offsets: dict[str, dict[int, int]] = field(default_factory=dict)

    def begin(self, name: str, client: str, group: str = "") -> Transaction:
        """Add a transaction."""
        assert name not in self.transactions, f"transaction {name} began twice"
        transaction = self.transactions[name] = Transaction(name, client, group)
        return transaction

    def count(self, outcome: Outcome) -> int:
        """Number of transactions with an outcome."""
        return sum(each.outcome is outcome for each in self.transactions.values())


class Anomaly(NamedTuple):
    """A violation: its kind, and what shows it."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def find_anomalies(history: TransactionHistory, log: Log) -> list[Anomaly]:
    """Compare a history with the final log of all partitions from offset 0. No client may be active, and no
    transaction may be open.
    """
    visible = {entry for records in log.values() for _, entry in records}
    committed = {
        transaction.name
        for transaction in history.transactions.values()
        if transaction.outcome is Outcome.COMMITTED or not visible.isdisjoint(transaction.written)
    }
    return [
        *_unexpected(history, log),
        *_torn(history, visible),
        *_repeated(log),
        *_reordered(log),
        *_unstable_reads(history, log),
        *_circular(history, committed),
        *_not_transformed(history, log),
        *_offsets(history, committed),
    ]


def _unexpected(history: TransactionHistory, log: Log) -> Iterator[Anomaly]:
    """Find records of aborted transactions, in the final log or in a read, and records without a writer."""
    seen = [("the final log", partition, records) for partition, records in log.items()]
    seen += [(read.reader, read.partition, read.records) for read in history.reads]
    for reader, partition, records in seen:
        for offset, entry in records:
            where = f"{reader} read {entry} at offset {offset} of partition {partition}"
            transaction = history.transactions.get(entry.transaction)
            if transaction is None or entry.partition != partition or entry not in transaction.written:
                yield Anomaly("invented record", where)
            elif transaction.outcome is Outcome.ABORTED:
                yield Anomaly("aborted read", where)


def _torn(history: TransactionHistory, visible: set[Entry]) -> Iterator[Anomaly]:
    """Find transactions that are visible in part, and acknowledged transactions with missing records."""
    for transaction in history.transactions.values():
        missing = [entry for entry in transaction.written if entry not in visible]
        if not missing:
            continue
        is_part = len(missing) < len(transaction.written)
        if transaction.outcome is Outcome.COMMITTED:
            yield Anomaly("lost write", f"{transaction.name} was committed, but {missing[0]} is missing")
        if is_part and transaction.outcome is not Outcome.ABORTED:
            yield Anomaly(
                "torn transaction",
                f"{len(missing)} of {len(transaction.written)} records of {transaction.name} are missing,"
                f" such as {missing[0]}",
            )


def _repeated(log: Log) -> Iterator[Anomaly]:
    for partition, records in log.items():
        first: dict[Entry, int] = {}
        for offset, entry in records:
            known = first.setdefault(entry, offset)
            if known != offset:
                yield Anomaly(
                    "duplicate", f"{entry} is at offsets {known} and {offset} of partition {partition}"
                )


def _reordered(log: Log) -> Iterator[Anomaly]:
    for partition, records in log.items():
        newest: dict[str, int] = {}
        for offset, entry in records:
            if newest.get(entry.client, entry.number) > entry.number:
                yield Anomaly(
                    "reordering",
                    f"{entry} at offset {offset} of partition {partition} follows record number"
                    f" {newest[entry.client]} of the same client",
                )
            newest[entry.client] = entry.number


def _unstable_reads(history: TransactionHistory, log: Log) -> Iterator[Anomaly]:
    """Find reads that returned less or more than is visible at the end: the last stable offset was beyond an
    open transaction, or a list of aborted transactions was wrong.
    """
    for read in history.reads:
        final = [one for one in log.get(read.partition, ()) if read.start <= one[0] < read.end]
        if list(read.records) == final:
            continue
        lost = [one for one in final if one not in read.records][:1]
        more = [one for one in read.records if one not in final][:1]
        yield Anomaly(
            "unstable read",
            f"{read.reader} read [{read.start}, {read.end}) of partition {read.partition}: missing {lost},"
            f" unexpected {more}",
        )


def _circular(history: TransactionHistory, committed: set[str]) -> Iterator[Anomaly]:
    """Find committed transactions that have read from each other in a circle (G1c)."""
    sources = {
        name: {entry.transaction for entry in history.transactions[name].read} & committed
        for name in committed
    }
    left = dict(sources)
    while True:
        done = {name for name, needed in left.items() if not needed & left.keys()}
        if not done:
            break
        left = {name: needed for name, needed in left.items() if name not in done}
    if left:
        yield Anomaly("circular information flow", " <- ".join(_circle(left)))


def _circle(sources: Mapping[str, set[str]]) -> list[str]:
    """A circle of transactions, each of which has a source among the others."""
    path = [min(sources)]
    while True:
        following = min(sources[path[-1]] & sources.keys())
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)


def _not_transformed(history: TransactionHistory, log: Log) -> Iterator[Anomaly]:
    """Find records that were transformed twice or never."""
    made: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for _, entry in (one for records in log.values() for one in records):
        if entry.source:
            made[entry.source].append(entry)
    wanted = {
        (partition, offset)
        for partition, records in log.items()
        for offset, entry in records
        if entry.hop < history.transformed
    }
    for at in sorted(wanted | made.keys()):
        found = made.get(at, [])
        if len(found) > 1:
            yield Anomaly(
                "duplicate", f"the record at (partition, offset) {at} was transformed more than once: {found}"
            )
        elif at not in wanted:
            yield Anomaly(
                "aborted read",
                f"{found[0]} was made from the record at (partition, offset) {at}, which is not visible",
            )
        elif not found:
            yield Anomaly("lost write", f"the record at (partition, offset) {at} was never transformed")


def _offsets(history: TransactionHistory, committed: set[str]) -> Iterator[Anomaly]:
    """Find group offsets that are visible without a commit of their transaction, or missing after it."""
    legal: dict[tuple[str, int], set[int]] = defaultdict(lambda: {NO_OFFSET})
    newest: dict[tuple[str, int], int] = defaultdict(lambda: NO_OFFSET)
    for transaction in history.transactions.values():
        # If the transaction wrote no records, only the answer shows the outcome.
        may_be_committed = transaction.name in committed or not (
            transaction.written or transaction.outcome is Outcome.ABORTED
        )
        for partition, offset in transaction.offsets.items():
            key = (transaction.group, partition)
            if may_be_committed:
                legal[key].add(offset)
            if transaction.name in committed:
                newest[key] = max(newest[key], offset)
    finals = [
        SeenOffset(group, partition, offset, newest[group, partition])
        for group, offsets in history.final_offsets.items()
        for partition, offset in offsets.items()
    ]
    yield from _illegal_offsets([*history.seen_offsets, *finals], legal)


def _illegal_offsets(
    found: Iterable[SeenOffset], legal: Mapping[tuple[str, int], set[int]]
) -> Iterator[Anomaly]:
    for seen in found:
        where = f"group {seen.group} is at {seen.offset} of partition {seen.partition}"
        if seen.offset not in legal[seen.group, seen.partition]:
            yield Anomaly("offset without its transaction", where)
        elif seen.offset < seen.acknowledged:
            yield Anomaly("lost offset", f"{where}, but {seen.acknowledged} was committed")
