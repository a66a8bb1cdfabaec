"""The records in flight of a share partition, as runs: consecutive offsets with the same state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

from ponor_broker.coordination.share_persister import DeliveryState

NO_MEMBER: Final = ""
NO_WRITE: Final = 0
_ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
_ARCHIVED: Final = DeliveryState.ARCHIVED
_LAST: Final = attrgetter("last_offset")


def is_final(state: DeliveryState) -> bool:
    """Return whether records of this state are never delivered again."""
    return state is _ACKNOWLEDGED or state is _ARCHIVED


class Run:
    """Consecutive offsets (both inclusive) of one delivery.

    Attributes:
        member_id: the holder of the lock while ACQUIRED; otherwise empty.
        lock_ends_ms: when the lock of an ACQUIRED run expires.
        target: the state that an acknowledgement or a release sets when it is durable. The run keeps its
            state and its holder until then, and no member may acquire or acknowledge it.
        write: number of the write that contains the run's change; `NO_WRITE` if nothing must be written.
    """

    __slots__ = (
        "delivery_count",
        "first_offset",
        "last_offset",
        "lock_ends_ms",
        "member_id",
        "state",
        "target",
        "write",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        state: DeliveryState = DeliveryState.AVAILABLE,
        delivery_count: int = 0,
    ) -> None:
        assert first_offset <= last_offset
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NO_MEMBER
        self.lock_ends_ms = 0
        self.target: DeliveryState | None = None
        self.write = NO_WRITE

    def __len__(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def is_available(self) -> bool:
        """Whether a member may acquire the offsets."""
        return self.state is DeliveryState.AVAILABLE

    @property
    def is_final(self) -> bool:
        """Whether the offsets are never delivered again."""
        return is_final(self.state)

    def is_held_by(self, member_id: str) -> bool:
        """Whether this member may acknowledge the offsets."""
        return self.state is DeliveryState.ACQUIRED and self.target is None and self.member_id == member_id

    def acquire(self, member_id: str, lock_ends_ms: int) -> None:
        """Give the lock to a member and count the delivery."""
        assert self.is_available, f"offset {self.first_offset} is not available"
        self.state = DeliveryState.ACQUIRED
        self.delivery_count += 1
        self.member_id, self.lock_ends_ms = member_id, lock_ends_ms

    def end(self, state: DeliveryState) -> None:
        """End the lock, if there is one, and set the state."""
        assert not self.is_final, f"offset {self.first_offset} is final"
        self.state, self.member_id, self.lock_ends_ms, self.target = state, NO_MEMBER, 0, None

    def split(self, first_offset: int) -> Run:
        """Cut the run before this offset and return the second part."""
        assert self.first_offset < first_offset <= self.last_offset
        rest = Run(first_offset, self.last_offset, self.state, self.delivery_count)
        rest.member_id, rest.lock_ends_ms = self.member_id, self.lock_ends_ms
        rest.target, rest.write = self.target, self.write
        self.last_offset = first_offset - 1
        return rest

    def is_like(self, other: Run) -> bool:
        """Whether both runs differ only in their offsets."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.lock_ends_ms == other.lock_ends_ms
            and self.target is other.target
            and self.write == other.write
        )


def renew_until(lock_ends_ms: int) -> Callable[[Run], None]:
    """Return a function that extends the locks of held offsets."""

    def renew(run: Run) -> None:
        run.lock_ends_ms = lock_ends_ms

    return renew


def begin_change(write: int, target: DeliveryState, deliveries_max: int) -> Callable[[Run], None]:
    """Return a function that changes held offsets to the target state with a write."""

    def begin(run: Run) -> None:
        run.target = released(run, deliveries_max) if target is DeliveryState.AVAILABLE else target
        run.write = write

    return begin


def released(run: Run, deliveries_max: int) -> DeliveryState:
    """Return the state of a record whose lock ends without an acknowledgement."""
    return DeliveryState.ARCHIVED if run.delivery_count >= deliveries_max else DeliveryState.AVAILABLE


def durable(run: Run) -> tuple[DeliveryState, int]:
    """Return state and delivery count as a write contains them. A lock is not durable: the record is
    written as it was before the acquisition.
    """
    if run.target is not None:
        return run.target, run.delivery_count
    if run.state is DeliveryState.ACQUIRED:
        return DeliveryState.AVAILABLE, run.delivery_count - 1
    return run.state, run.delivery_count


Change: TypeAlias = tuple[int, int, Callable[[Run], None]]
"""First offset, last offset, and the function that changes runs of these offsets in place."""


class Runs:
    """Runs in order of offsets, without gaps between them. Neighbours differ, except within `change`."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def append(self, run: Run) -> None:
        """Add offsets after the last run."""
        assert not self._runs or self._runs[-1].last_offset + 1 == run.first_offset, "runs have no gaps"
        _join(self._runs, run)

    def since(self, offset: int) -> Iterator[Run]:
        """Yield the run that contains the offset and all after it. Nothing may change meanwhile."""
        runs = self._runs
        for index in range(bisect_left(runs, offset, key=_LAST), len(runs)):
            yield runs[index]

    def within(self, first_offset: int, last_offset: int) -> Iterator[Run]:
        """Yield the runs that overlap these offsets. Nothing may change meanwhile."""
        for run in self.since(first_offset):
            if run.first_offset > last_offset:
                return
            yield run

    def change(self, first_offset: int, last_offset: int, apply: Callable[[Run], None]) -> None:
        """Call `apply` with runs of exactly these offsets, which must be in flight; join equal neighbours."""
        self.change_ranges([(first_offset, last_offset, apply)])

    def change_ranges(self, changes: Sequence[Change]) -> None:
        """As `change`, for several ranges in ascending order, in one pass."""
        runs = self._runs
        # The neighbours on both sides may become equal to changed runs.
        begin = max(bisect_left(runs, changes[0][0], key=_LAST) - 1, 0)
        end = min(bisect_left(runs, changes[-1][1], begin, key=_LAST) + 2, len(runs))
        changed: list[Run] = []
        pending = iter(changes)
        first_offset, last_offset, apply = next(pending)
        for run in runs[begin:end]:
            rest: Run | None = run
            while rest is not None:
                part, rest = rest, None
                if part.first_offset > last_offset:
                    first_offset, last_offset, apply = next(pending, _NO_CHANGE)
                if part.first_offset < first_offset <= part.last_offset:
                    rest = part.split(first_offset)
                elif part.first_offset >= first_offset:
                    if part.last_offset > last_offset:
                        rest = part.split(last_offset + 1)
                    apply(part)
                _join(changed, part)
        runs[begin:end] = changed

    def change_all(self, apply: Callable[[Run], None]) -> None:
        """Call `apply` with every run, and join equal neighbours."""
        joined: list[Run] = []
        for run in self._runs:
            apply(run)
            _join(joined, run)
        self._runs = joined

    def remove_final(self) -> int | None:
        """Remove the final runs at the start; return the offset after them, None if there are none."""
        runs, count = self._runs, 0
        while count < len(runs) and is_final(runs[count].state):
            count += 1
        if not count:
            return None
        offset = runs[count - 1].last_offset + 1
        del runs[:count]
        return offset

    def remove_before(self, offset: int) -> None:
        """Remove all offsets below this one."""
        index = bisect_left(self._runs, offset, key=_LAST)
        del self._runs[:index]
        if self._runs and self._runs[0].first_offset < offset:
            self._runs[0].first_offset = offset


def _join(runs: list[Run], run: Run) -> None:
    """Add a run, or extend the last one if both are equal."""
    if runs and runs[-1].is_like(run):
        runs[-1].last_offset = run.last_offset
    else:
        runs.append(run)


def _unchanged(_: Run) -> None:
    raise AssertionError("no run is beyond all offsets")


_NO_CHANGE: Final[Change] = (1 << 63, 1 << 63, _unchanged)
