"""The history of the members of one consumer group, and the search for anomalies in it.

Members note which partitions they may use and until when, what they commit, and which records they get. The
rules hold for the classic and for the consumer protocol: they use only the answers that members receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ponor_cluster_simulation.histories.transactions import Anomaly

NO_OFFSET: Final = -1
"""The answer for a partition without a committed offset."""


@dataclass(slots=True)
class Use:
    """The time [start_s, end_s) in which one member may use a partition.

    A member is a name for the time between a join and the end of the membership; a client that joins again
    is another member.
    """

    member: str
    partition: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class Commit:
    """A commit of a member.

    Attributes:
        told_s: when it was acknowledged; None without an acknowledgement.
        is_refused: the coordinator refused it, so it had no effect.
    """

    member: str
    partition: int
    offset: int
    asked_s: float
    told_s: float | None = None
    is_refused: bool = False


class SeenOffset(NamedTuple):
    """A committed offset that the coordinator returned."""

    partition: int
    offset: int
    asked_s: float
    told_s: float


class Delivery(NamedTuple):
    """The records [start, end) of a partition, received by a member."""

    member: str
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class GroupHistory:
    """What all members did and saw.

    Attributes:
        stale_s: a replaced coordinator may answer for this long.
        fenced: members that were removed or fenced although all their heartbeats were answered.
    """

    stale_s: float
    uses: list[Use] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    seen_offsets: list[SeenOffset] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    fenced: list[str] = field(default_factory=list)
    _open: dict[tuple[str, int], Use] = field(default_factory=dict)

    def got(self, member: str, partitions: Iterable[int], now_s: float, until_s: float) -> None:
        """Note that a member begins to use partitions. No other member may have them before `until_s`."""
        for partition in partitions:
            use = self._open[member, partition] = Use(member, partition, now_s, max(now_s, until_s))
            self.uses.append(use)

    def confirmed(self, member: str, now_s: float, until_s: float) -> None:
        """Note that a member keeps its partitions until a later time, if its time is not over yet."""
        for (owner, _), use in self._open.items():
            if owner == member and now_s < use.end_s:
                use.end_s = max(use.end_s, until_s)

    def gave_up(self, member: str, partitions: Iterable[int], now_s: float) -> None:
        """Note that a member no longer uses partitions."""
        for partition in partitions:
            use = self._open.pop((member, partition))
            use.end_s = max(use.start_s, min(use.end_s, now_s))

    def count_acknowledged(self) -> int:
        """Number of acknowledged commits."""
        return sum(each.told_s is not None for each in self.commits)

    def acknowledged(self, partition: int) -> int:
        """The offset of the newest acknowledged commit of a partition."""
        told = [each for each in self.commits if each.partition == partition and each.told_s is not None]
        return told[-1].offset if told else NO_OFFSET


def find_anomalies(history: GroupHistory, ends: Mapping[int, int] | None = None) -> list[Anomaly]:
    """Search a history; `ends` are the ends of all partitions when the members have read everything."""
    return [
        *(Anomaly("fenced without a reason", each) for each in history.fenced),
        *_two_owners(history),
        *_commits_without_right(history),
        *_offsets(history),
        *_deliveries(history, ends or {}),
    ]


def _two_owners(history: GroupHistory) -> Iterator[Anomaly]:
    """Find partitions that two members may use at a time."""
    newest: dict[int, dict[str, Use]] = defaultdict(dict)
    for use in sorted(history.uses, key=lambda each: each.start_s):
        known = newest[use.partition]
        for other in known.values():
            if other.member != use.member and other.end_s > use.start_s and use.end_s > use.start_s:
                yield Anomaly(
                    "two owners",
                    f"{other.member} may use partition {use.partition} until {other.end_s:.3f} s, but"
                    f" {use.member} began at {use.start_s:.3f} s",
                )
        before = known.get(use.member)
        if before is None or before.end_s < use.end_s:
            known[use.member] = use


def _commits_without_right(history: GroupHistory) -> Iterator[Anomaly]:
    """Find acknowledged commits during which another member had the partition."""
    uses: dict[int, list[Use]] = defaultdict(list)
    for use in history.uses:
        uses[use.partition].append(use)
    for commit in history.commits:
        if commit.told_s is None:
            continue
        for use in uses[commit.partition]:
            if use.member != commit.member and use.start_s < commit.asked_s and commit.told_s < use.end_s:
                yield Anomaly(
                    "commit without right",
                    f"{commit.member} committed {commit.offset} of partition {commit.partition} at"
                    f" {commit.told_s:.3f} s, but {use.member} had the partition since {use.start_s:.3f} s",
                )


def _offsets(history: GroupHistory) -> Iterator[Anomaly]:
    """Find committed offsets that were never committed, or are older than an acknowledged one."""
    commits: dict[int, list[Commit]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.partition].append(commit)
    for seen in history.seen_offsets:
        of_partition = commits[seen.partition]
        what = f"partition {seen.partition} has the offset {seen.offset} at {seen.told_s:.3f} s"
        possible = [each for each in of_partition if _may_have_set(each, seen)]
        if seen.offset != NO_OFFSET and not possible:
            yield Anomaly("invented offset", f"{what}, which no member committed")
            continue
        known = [
            each
            for each in of_partition
            if each.told_s is not None and each.told_s < seen.asked_s - history.stale_s
        ]
        later = [each for each in known if all(_precedes(one, each) for one in possible)]
        if later:
            yield Anomaly(
                "lost offset",
                f"{what}, but {later[-1].member} committed {later[-1].offset} at {later[-1].told_s:.3f} s",
            )


def _may_have_set(commit: Commit, seen: SeenOffset) -> bool:
    return commit.offset == seen.offset and not commit.is_refused and commit.asked_s <= seen.told_s


def _precedes(commit: Commit, later: Commit) -> bool:
    """Whether a commit took effect before the acknowledged commit `later`, if it had an effect at all.

    A commit without an answer may arrive late, but not after another member got the partition.
    """
    if commit.told_s is None:
        return commit.member != later.member and commit.asked_s < later.asked_s
    return commit.told_s < later.asked_s


def _deliveries(history: GroupHistory, ends: Mapping[int, int]) -> Iterator[Anomaly]:
    """Find records that no member received."""
    reached: dict[int, int] = defaultdict(int)
    for delivery in history.deliveries:
        before = reached[delivery.partition]
        if delivery.start > before:
            yield Anomaly(
                "skipped records",
                f"{delivery.member} began at offset {delivery.start} of partition {delivery.partition}, but"
                f" the members had received the records below {before}",
            )
        reached[delivery.partition] = max(before, delivery.end)
    for partition, end in ends.items():
        if reached[partition] != end:
            yield Anomaly(
                "skipped records",
                f"the members received the records of partition {partition} below {reached[partition]}; its"
                f" end is {end}",
            )
