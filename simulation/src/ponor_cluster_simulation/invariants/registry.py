"""The list of invariants: what each says, and who looks at it.

What lives here: the text and the place. Numbers are for ever: reports, tests and decisions refer to them. An invariant that nobody can look at yet stays in the list with the
reason, so that the report of a run says what it does not prove.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

LIVENESS: Final = 29
"""Number under which the second phase counts; not one of the invariants of safety."""


class InvariantBrokenError(AssertionError):
    """The message names the invariant, by its number, and what broke it."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One row.

    Attributes:
        seen_by: the part of the simulated cluster that looks at it in every run; empty: none does.
        elsewhere: which other check proves it, or why nobody can yet.
    """

    number: int
    says: str
    seen_by: str = ""
    elsewhere: str = ""


RAFT_SIMULATION: Final = (
    "looked at inside the Raft core, by the simulation of the core alone (tests/simulation/test_raft_*.py)"
)

INVARIANTS: Final = (
    Invariant(1, "one leader per term", "watch"),
    Invariant(2, "log matching", elsewhere=RAFT_SIMULATION),
    Invariant(3, "the committed prefix never changes, over crashes", "watch"),
    Invariant(4, "the commit index of a life never falls", "watch"),
    Invariant(5, "a leader has everything that was committed", elsewhere=RAFT_SIMULATION),
    Invariant(6, "applied <= committed <= last", "watch"),
    Invariant(7, "no answer and no vote leaves before its sync", elsewhere=RAFT_SIMULATION),
    Invariant(8, "term and vote on disk never fall", elsewhere=RAFT_SIMULATION),
    Invariant(
        9, "members change one at a time, and majorities of neighbours meet", elsewhere=RAFT_SIMULATION
    ),
    Invariant(
        10, "a snapshot is of committed state, and its digest is every replica's at that index", "watch"
    ),
    Invariant(11, "a linearizable read shows what was there when it was asked, or later", "histories"),
    Invariant(12, "a stream has at most one open owner (node, node epoch, stream epoch)", "ledger"),
    Invariant(13, "epochs of streams and nodes strictly rise", "ledger"),
    Invariant(14, "nothing of an older epoch commits after a newer open", "ledger"),
    Invariant(15, "start <= trimmed <= end, and neither falls", "ledger"),
    Invariant(16, "ranges of a stream are contiguous, disjoint and ordered", "ledger"),
    Invariant(17, "objects cover exactly [start, end) of a stream", "ledger"),
    Invariant(18, "a stream's end at its close is the sum of what was committed", "ledger"),
    Invariant(
        19,
        "what was acknowledged to a producer is in the log that its owner replays, or in [start, end)",
        "histories",
    ),
    Invariant(20, "ids are given once", "ledger"),
    Invariant(21, "an object is prepared, committed, destroyed, gone: never backwards", "ledger"),
    Invariant(22, "a committed object is in the store, with its size", "ledger"),
    Invariant(23, "what a stream refers to is committed", "ledger"),
    Invariant(24, "nothing that is referred to, or was until less than the delay ago, is deleted", "ledger"),
    Invariant(
        25,
        "everything in the store is known; orphans and rows of objects that nobody will commit or use come to zero",
        "judgement",
    ),
    Invariant(26, "compaction keeps every stream's bytes", "ledger, histories"),
    Invariant(
        27,
        "an operation happens once: the same id has the same answer, another body is an error",
        "ledger, histories",
    ),
    Invariant(28, "images at one index are equal, and no follower goes back or skips", "watch"),
    Invariant(
        LIVENESS,
        "healed, the cluster has a leader within 5 s, answers everything and comes to rest",
        "judgement",
    ),
    Invariant(30, "a partition has one owner at an epoch, and epochs rise with leaders", "ledger"),
    Invariant(
        31,
        "a write-ahead log in the store is opened, trimmed, given to a recoverer when its owner is over, and closed when no stream of it is open",
        "ledger",
    ),
    Invariant(
        32, "slots are given up when what they hold is committed; a fence stays for ever", "ledger, judgement"
    ),
    Invariant(
        33, "high watermarks, leader epochs and records of one offset never go back for anybody", "histories"
    ),
    Invariant(
        34, "healed, moves end, logs of the dead are recovered, and who leads a partition lives", "judgement"
    ),
    Invariant(
        35,
        "an object is the source of one compaction at a time, which one worker has at a token, and only that one swaps, once",
        "ledger",
    ),
    Invariant(
        36,
        "what a leased snapshot names stays, and reads the same, until the lease is over",
        "ledger, histories",
    ),
    Invariant(37, "a compacted log keeps each key's latest record, and every record its offset", "histories"),
    Invariant(
        38,
        "healed, compaction comes to rest, no lease is left, and no upload in parts that whoever began it could end",
        "judgement",
    ),
    Invariant(
        39,
        "streams and keys are made for partitions that exist, and at rest each one is named by its partition",
        "ledger, judgement",
    ),
    Invariant(
        40,
        "no broker's answer to a reader or a group is older than a session timeout, also if the broker was replaced",
        "histories",
    ),
    Invariant(45, "no living broker is fenced for the absence of another process", "run"),
    Invariant(46, "the client of a connection closes it, also after an error", "judgement"),
    Invariant(
        47,
        "a voter that lost committed entries and has heard a leader since grants no vote to a candidate that lacks them",
        elsewhere=RAFT_SIMULATION,
    ),
)


class Checks:
    """Counts how often each invariant was looked at, and raises when one does not hold."""

    def __init__(self, counts: Counter[int] | None = None) -> None:
        self.counts: Counter[int] = Counter() if counts is None else counts

    def require(self, number: int, holds: bool, what: str) -> None:
        """Look at an invariant.

        Raises:
            InvariantBrokenError: it does not hold.
        """
        self.counts[number] += 1
        if not holds:
            raise InvariantBrokenError(f"invariant {number} ({says(number)}): {what}")


def says(number: int) -> str:
    """The text of an invariant."""
    return next(each.says for each in INVARIANTS if each.number == number)


def report(counts: Counter[int]) -> list[str]:
    """Lines for people: every invariant, and how often it was looked at, or why not."""
    lines = ["invariants (times looked at):"]
    for each in INVARIANTS:
        seen = f"{counts[each.number]:>10,}" if each.seen_by else " " * 9 + "-"
        name = "liveness" if each.number == LIVENESS else f"{each.number}"
        lines.append(f"  {seen}  {name}: {each.says}" + (f"; {each.elsewhere}" if each.elsewhere else ""))
    return lines
