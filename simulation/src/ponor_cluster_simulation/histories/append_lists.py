"""The check of append-only lists, such as partitions, whose offsets give every record a fixed
place.

It is Elle's list-append check (Kingsbury and Alvaro, 2020). The system names the offset of each
value, so lost, duplicated, reordered and phantom values are found without a search. Values are
unique in a history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class AnomalyKind(Enum):
    """Kinds of errors in a list."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    PHANTOM = "phantom"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One error."""

    kind: AnomalyKind
    partition: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: partition {self.partition}: {self.what}"


@dataclass(frozen=True, slots=True)
class Append:
    """A value that a process sent. Without `offset` and `returned` it was not acknowledged: it may
    be in the list at most once.
    """

    process: str
    partition: str
    value: Any
    called: float
    returned: float | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Consecutive values that a process read from `first_offset` on."""

    process: str
    partition: str
    first_offset: int
    values: tuple[Any, ...]


def find_anomalies(
    appends: Iterable[Append],
    observations: Iterable[Observation],
    start_offsets: dict[str, int] | None = None,
) -> list[Anomaly]:
    """Return all errors, in the order of partitions.

    Together the last observations must show each partition at the end, from `start_offsets` on (0
    if absent).
    """
    sent: dict[str, list[Append]] = defaultdict(list)
    for append in appends:
        sent[append.partition].append(append)
    read: dict[str, list[Observation]] = defaultdict(list)
    for observation in observations:
        read[observation.partition].append(observation)
    anomalies: list[Anomaly] = []
    for partition in sorted({*sent, *read}):
        start = (start_offsets or {}).get(partition, 0)
        anomalies += _Partition(partition, start, sent[partition], read[partition]).check()
    return anomalies


class _Partition:
    """The check of one list."""

    def __init__(
        self, name: str, start: int, appends: Sequence[Append], observations: Sequence[Observation]
    ) -> None:
        self._name = name
        self._start = start
        self._appends = appends
        self._observations = observations
        self._found: list[Anomaly] = []
        self._offsets: dict[Any, int] = {}

    def check(self) -> list[Anomaly]:
        log = self._log()
        self._places(log)
        self._acknowledged(log)
        self._order()
        return self._found

    def _say(self, kind: AnomalyKind, what: str) -> None:
        self._found.append(Anomaly(kind, self._name, what))

    def _log(self) -> dict[int, Any]:
        """Map offsets to values; all observations of an offset must be equal."""
        log: dict[int, Any] = {}
        for observation in self._observations:
            for offset, value in enumerate(observation.values, observation.first_offset):
                known = log.setdefault(offset, value)
                if known != value:
                    self._say(
                        AnomalyKind.CHANGED,
                        f"offset {offset} was {known!r} and was {value!r} for {observation.process}",
                    )
        return log

    def _places(self, log: dict[int, Any]) -> None:
        known = {append.value for append in self._appends}
        for offset in sorted(log):
            value = log[offset]
            if value not in known:
                self._say(AnomalyKind.PHANTOM, f"no process sent {value!r}, which is at {offset}")
            first = self._offsets.setdefault(value, offset)
            if first != offset:
                self._say(AnomalyKind.DUPLICATED, f"{value!r} is at {first} and at {offset}")

    def _acknowledged(self, log: dict[int, Any]) -> None:
        for append in self._appends:
            if append.offset is None or append.offset < self._start:
                continue
            if append.offset not in log:
                self._say(
                    AnomalyKind.LOST,
                    f"{append.value!r} was acknowledged at {append.offset}, which no observation shows",
                )
            elif log[append.offset] != append.value:
                place = self._offsets.get(append.value)
                kind = AnomalyKind.LOST if place is None else AnomalyKind.REORDERED
                self._say(
                    kind,
                    f"{append.value!r} was acknowledged at {append.offset}, where {log[append.offset]!r} is; it is at {place}",
                )

    def _order(self) -> None:
        """Check that values are in the order of acknowledgement and sending, and of each process."""
        placed = [append for append in self._appends if append.value in self._offsets]
        ended = sorted(
            (each for each in placed if each.returned is not None), key=lambda each: each.returned or 0.0
        )
        highest: Append | None = None
        position = 0
        for later in sorted(placed, key=lambda each: each.called):
            while position < len(ended) and (ended[position].returned or 0.0) < later.called:
                candidate = ended[position]
                if highest is None or self._offsets[candidate.value] > self._offsets[highest.value]:
                    highest = candidate
                position += 1
            if highest is not None and self._offsets[later.value] < self._offsets[highest.value]:
                self._misplaced(highest, later, "was acknowledged before")
        last: dict[str, Append] = {}
        for append in placed:
            before = last.get(append.process)
            if before is not None and self._offsets[append.value] < self._offsets[before.value]:
                self._misplaced(before, append, f"was sent by {append.process} before")
            last[append.process] = append

    def _misplaced(self, earlier: Append, later: Append, why: str) -> None:
        self._say(
            AnomalyKind.REORDERED,
            f"{earlier.value!r} {why} {later.value!r}, and is at {self._offsets[earlier.value]} behind {self._offsets[later.value]}",
        )
