"""The list of invariants, and the counter of their checks.

Numbers never change: reports, tests and documents refer to them. An invariant that no run checks stays in
the list with the reason, so that a report shows what a run does not prove.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

LIVENESS: Final = 29
"""Number of the checks of the liveness phase; not a safety invariant."""


class InvariantBrokenError(AssertionError):
    """An invariant is broken; the message has its number and the cause."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One row.

    Attributes:
        checked_by: the part of a run that checks the invariant; empty if runs do not check it.
        elsewhere: the other test that proves the invariant, or the reason why no test does.
    """

    number: int
    text: str
    checked_by: str = ""
    elsewhere: str = ""


RAFT_SIMULATION: Final = (
    "checked inside the Raft core by its own simulation (tests/simulation/test_raft_*.py)"
)

INVARIANTS: Final = (
    Invariant(1, "one leader per term", "watch"),
    Invariant(2, "log matching", elsewhere=RAFT_SIMULATION),
    Invariant(3, "the committed prefix never changes, not even in a crash", "watch"),
    Invariant(4, "a controller's commit index never falls between its start and its stop or crash", "watch"),
    Invariant(5, "a leader has everything that was committed", elsewhere=RAFT_SIMULATION),
    Invariant(6, "applied <= committed <= last", "watch"),
    Invariant(
        7,
        "a replica sends an answer or a vote only after the state that it depends on is durable",
        elsewhere=RAFT_SIMULATION,
    ),
    Invariant(8, "term and vote on disk never fall", elsewhere=RAFT_SIMULATION),
    Invariant(
        9, "voters change one at a time: majorities before and after overlap", elsewhere=RAFT_SIMULATION
    ),
    Invariant(
        10, "a snapshot contains only committed state; all replicas have its digest at its index", "watch"
    ),
    Invariant(11, "a linearizable read returns the state at its request, or a later one", "histories"),
    Invariant(12, "a stream has at most one open owner (node, node epoch, stream epoch)", "ledger"),
    Invariant(13, "epochs of streams and nodes strictly rise", "ledger"),
    Invariant(14, "nothing of an older epoch is committed after a newer open", "ledger"),
    Invariant(15, "start <= trimmed <= end, and none of them falls", "ledger"),
    Invariant(16, "ranges of a stream are contiguous, disjoint and ordered", "ledger"),
    Invariant(17, "objects cover exactly [start, end) of a stream", "ledger"),
    Invariant(18, "when a stream is closed, its end is the number of committed offsets", "ledger"),
    Invariant(
        19,
        "records acknowledged to a producer are in the write-ahead log that the stream's owner replays, or in"
        " the stream's [start, end)",
        "histories",
    ),
    Invariant(20, "no id is assigned twice", "ledger"),
    Invariant(
        21, "an object goes from prepared to committed to destroyed to removed, and never back", "ledger"
    ),
    Invariant(22, "a committed object is in the store, with its size", "ledger"),
    Invariant(23, "streams refer to committed objects only", "ledger"),
    Invariant(24, "no object is deleted while in use or before the deletion delay is over", "ledger"),
    Invariant(
        25,
        "every key in the store is known; orphans and rows of unused objects are removed",
        "judgement",
    ),
    Invariant(26, "compaction keeps every stream's bytes", "ledger, histories"),
    Invariant(
        27,
        "an operation is executed once: a repetition with its id gets the same answer, and the same id with"
        " another body is an error",
        "ledger, histories",
    ),
    Invariant(28, "images at one index are equal, and no follower goes back or skips", "watch"),
    Invariant(
        LIVENESS,
        "after the faults the cluster has a leader within 5 s, answers every request and becomes quiescent",
        "judgement",
    ),
    Invariant(
        30,
        "a partition has one owner at an epoch, and the epoch rises whenever the leader changes",
        "ledger",
    ),
    Invariant(
        31,
        "a log in the store is opened once, its trim point only rises, it is assigned to a recoverer only"
        " after its owner's epoch ended, and it is closed when none of its streams is open",
        "ledger",
    ),
    Invariant(
        32,
        "slots are trimmed when their records are committed; a fence is never deleted",
        "ledger, judgement",
    ),
    Invariant(
        33,
        "no client sees a high watermark or leader epoch fall, or the record at an offset change",
        "histories",
    ),
    Invariant(
        34,
        "after the faults moves end, logs of dead brokers are recovered, and live brokers lead all"
        " partitions",
        "judgement",
    ),
    Invariant(
        35,
        "an object is the source of one compaction task at a time; one worker at a time holds the task, under"
        " a token, and replaces the sources at most once",
        "ledger",
    ),
    Invariant(
        36,
        "objects of a leased snapshot stay unchanged until the lease ends",
        "ledger, histories",
    ),
    Invariant(
        37, "a compacted log keeps each key's latest record, and records keep their offsets", "histories"
    ),
    Invariant(
        38,
        "after the faults compaction ends, and no lease and no multipart upload with a live owner is left",
        "judgement",
    ),
    Invariant(
        39,
        "streams and keys are created for existing partitions; in a quiescent cluster each stream and key"
        " belongs to an existing partition",
        "ledger, judgement",
    ),
    Invariant(
        40,
        "no broker answers a reader or a group from state older than a session timeout, even if the broker"
        " was replaced",
        "histories",
    ),
    Invariant(45, "no live broker is fenced because another process is absent", "run"),
    Invariant(46, "the client closes each of its connections, even after an error", "judgement"),
    Invariant(
        47,
        "a voter that lost committed entries and then received a leader's message does not vote for a"
        " candidate that lacks these entries",
        elsewhere=RAFT_SIMULATION,
    ),
    Invariant(
        48,
        "a transaction has one outcome, the acknowledged one: all of its records are visible once and in"
        " order, or none",
        "histories",
    ),
    Invariant(
        49,
        "readers of committed records read exactly the records that are visible at the end of the run",
        "histories",
    ),
    Invariant(
        50,
        "the last stable offset never falls, is not beyond the high watermark, and bounds committed reads",
        "histories",
    ),
    Invariant(
        51, "an offset in a transaction is visible if and only if the transaction committed", "histories"
    ),
    Invariant(
        52, "the coordinator ends an open transaction only after its timeout or for a new client", "histories"
    ),
    Invariant(
        53,
        "after the faults no last stable offset stays behind for more than twice the transaction timeout",
        "histories, judgement",
    ),
    Invariant(
        54,
        "a transaction's states and markers have the same outcome, and no log has an entry of an older"
        " epoch after an entry of a newer epoch",
        "histories",
    ),
    Invariant(
        55,
        "a transaction includes the partitions of all its batches; at the end each batch has a marker",
        "histories",
    ),
    Invariant(56, "a partition has at most one member of a group at a time", "histories"),
    Invariant(
        57,
        "a member commits offsets of its own partitions only, and an acknowledged offset stays until a newer"
        " commit",
        "histories",
    ),
    Invariant(58, "the members of a group receive each record at least once", "histories"),
    Invariant(59, "after the faults each partition of a group's topics has one living member", "judgement"),
    Invariant(
        60,
        "the records of a group never give a partition to two members; at rest targets, current assignments"
        " and epochs agree",
        "histories",
    ),
    Invariant(
        61,
        "a member whose heartbeats are answered stays in the group, with the epoch of the newest answer",
        "histories",
    ),
    Invariant(
        62,
        "a record has at most one holder in a share group, and only the holder acknowledges it",
        "histories",
    ),
    Invariant(
        63, "a record that is accepted or rejected is not delivered or acknowledged again", "histories"
    ),
    Invariant(
        64,
        "the delivery count of a record rises with each delivery, is not lost with its leader, and stays"
        " within the limit",
        "histories",
    ),
    Invariant(
        65,
        "after the faults each record of a share group is accepted, rejected, or was delivered up to the"
        " limit",
        "histories, judgement",
    ),
    Invariant(66, "a task has at most one owner in a streams group at a time", "histories"),
    Invariant(67, "after the faults each task of a streams group has one living member", "judgement"),
)


class Checks:
    """Counts the checks of each invariant, and raises when one fails."""

    def __init__(self, counts: Counter[int] | None = None) -> None:
        self.counts: Counter[int] = Counter() if counts is None else counts

    def require(self, number: int, holds: bool, what: str) -> None:
        """Check an invariant.

        Raises:
            InvariantBrokenError: it does not hold.
        """
        self.counts[number] += 1
        if not holds:
            raise InvariantBrokenError(f"invariant {number} ({text_of(number)}): {what}")


def text_of(number: int) -> str:
    """Return the text of an invariant."""
    return next(each.text for each in INVARIANTS if each.number == number)


def report(counts: Counter[int]) -> list[str]:
    """Return a report's lines: every invariant with its number of checks, or with where it is proved."""
    lines = ["invariants (number of checks):"]
    for each in INVARIANTS:
        seen = f"{counts[each.number]:>10,}" if each.checked_by else " " * 9 + "-"
        name = "liveness" if each.number == LIVENESS else f"{each.number}"
        lines.append(f"  {seen}  {name}: {each.text}" + (f"; {each.elsewhere}" if each.elsewhere else ""))
    return lines
