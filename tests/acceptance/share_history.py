"""What the members of a share group reported, and whether each record ended as it must: acknowledged once,
or archived at the limit of deliveries.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

TOOK: Final = "took"
ACCEPTED: Final = "accepted"
DOUBTFUL: Final = "doubtful"


@dataclass(frozen=True, slots=True)
class Event:
    """A record in a report, with its delivery count."""

    at_ns: int
    count: int


@dataclass
class ShareHistory:
    """Events by offset."""

    taken: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    doubtful: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, lines: Iterable[str]) -> ShareHistory:
        """Parse reports of all members. A line that a kill cut short is not complete and does not count."""
        history = cls()
        for line in lines:
            if not line.endswith("\n"):
                continue
            what, at_ns, *rows = line.split()
            for row in rows:
                offset, count = map(int, row.split(":"))
                history._add(what, offset, Event(int(at_ns), count))
        return history

    def _add(self, what: str, offset: int, event: Event) -> None:
        if what == TOOK:
            self.taken[offset].append(event)
        elif what == ACCEPTED:
            self.accepted[offset].append(event)
        else:
            assert what == DOUBTFUL, what
            self.doubtful.add(offset)

    def anomalies(self, end_offset: int, limit: int, crashes_ns: Sequence[int]) -> list[str]:
        """Return what no run may contain; every record below `end_offset` is final.

        `crashes_ns`: when members were killed, in order. A member that is killed takes records that it does
        not report, so each crash after the last report of a record may have raised its delivery count by one.
        """
        found: list[str] = []
        for offset in range(end_offset):
            taken, accepted = self.taken[offset], self.accepted[offset]
            highest = max((event.count for event in taken), default=0)
            if highest > limit:
                found.append(f"{offset} was delivered {highest} times, the limit is {limit}")
            if len(accepted) > 1:
                found.append(f"{offset} was acknowledged {len(accepted)} times")
            for done in accepted[:1]:
                if any(event.at_ns > done.at_ns and event.count > done.count for event in taken):
                    found.append(f"{offset} was delivered after its acknowledgement")
            if not accepted and offset not in self.doubtful:
                last_ns = max((event.at_ns for event in taken), default=0)
                hidden = len(crashes_ns) - bisect.bisect(crashes_ns, last_ns)
                if highest + hidden < limit:
                    found.append(f"{offset} is final after {highest} deliveries without an acknowledgement")
        return found
