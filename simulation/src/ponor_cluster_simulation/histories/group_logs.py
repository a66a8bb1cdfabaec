"""The search for faults in the records of one consumer group: at every moment no partition is in the current
assignments of two members; at rest the records agree with each other and with what the members use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ponor_cluster_simulation.histories.transactions import Anomaly


class RowKind(Enum):
    """Kinds of records."""

    CLASSIC = "classic group"
    EPOCH = "group epoch"
    TARGET_EPOCH = "target epoch"
    MEMBER = "member"
    TARGET = "target"
    CURRENT = "current assignment"


class Row(NamedTuple):
    """A record; its key is `kind` and `member`.

    Attributes:
        epoch: an epoch, or a generation.
        partitions: of the group's only topic; those to be revoked too.
        shares: the assignment of each member of a classic group.
    """

    kind: RowKind
    member: str = ""
    epoch: int = 0
    partitions: frozenset[int] = frozenset()
    shares: Mapping[str, frozenset[int]] | None = None
    is_tombstone: bool = False


@dataclass(slots=True)
class GroupLog:
    """The state that the records of a group describe."""

    rows: dict[tuple[RowKind, str], Row] = field(default_factory=dict)

    def replay(self, batches: Iterable[Sequence[Row]]) -> Iterator[Anomaly]:
        """Apply batches; find partitions with two members after each of them."""
        for number, batch in enumerate(batches):
            for row in batch:
                if row.is_tombstone:
                    self.rows.pop((row.kind, row.member), None)
                else:
                    self.rows[row.kind, row.member] = row
            for partition, members in _shared(self.shares(RowKind.CURRENT)):
                yield Anomaly(
                    "two holders", f"batch {number} gives partition {partition} to {' and '.join(members)}"
                )

    def shares(self, kind: RowKind) -> dict[str, frozenset[int]]:
        """The partitions of each member in records of a kind."""
        return {row.member: row.partitions for row in self.rows.values() if row.kind is kind}

    def at_rest(self, used: Mapping[str, frozenset[int]]) -> Iterator[Anomaly]:
        """Compare the state with the partitions that each living member uses."""
        classic = self.rows.get((RowKind.CLASSIC, ""))
        if classic is not None:
            kinds = {kind for kind, _ in self.rows} - {RowKind.CLASSIC}
            if kinds:
                yield Anomaly("two types", f"the classic group has records of {sorted(map(str, kinds))}")
            yield from _different("classic assignment", classic.shares or {}, used)
            return
        members = {row.member for row in self.rows.values() if row.kind is RowKind.MEMBER}
        if members != used.keys():
            yield Anomaly("members", f"the group has {sorted(members)}, but {sorted(used)} are alive")
        yield from _different("target", self.shares(RowKind.TARGET), used)
        yield from _different("current assignment", self.shares(RowKind.CURRENT), used)
        epochs = {f"{row.kind.value} {row.member}": row.epoch for row in self.rows.values() if row.epoch}
        if len(set(epochs.values())) != 1:
            yield Anomaly("epochs", f"the epochs differ: {epochs}")


def _shared(shares: Mapping[str, frozenset[int]]) -> Iterator[tuple[int, list[str]]]:
    holders: dict[int, list[str]] = {}
    for member, partitions in shares.items():
        for partition in partitions:
            holders.setdefault(partition, []).append(member)
    return ((partition, members) for partition, members in holders.items() if len(members) > 1)


def _different(
    what: str, stored: Mapping[str, frozenset[int]], used: Mapping[str, frozenset[int]]
) -> Iterator[Anomaly]:
    for member in sorted(stored.keys() | used.keys()):
        found, wanted = stored.get(member, frozenset()), used.get(member, frozenset())
        if found != wanted:
            yield Anomaly(what, f"{member} has {sorted(found)} in the log, and uses {sorted(wanted)}")
