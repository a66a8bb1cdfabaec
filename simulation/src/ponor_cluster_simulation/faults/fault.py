"""One fault: what is done to whom, when and for how long.

What lives here: the value and its kinds. It says everything that its doing depends on, so that the same fault is the same whichever others happen in a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

EVERYBODY: Final = "everybody"
"""Target of faults that strike every machine, or something that all share."""
LEADER: Final = "leader"
"""Target of faults that strike whichever controller leads when their time has come; the first one if none does."""
SOURCE: Final = "source"
"""Target: the broker that a partition moves away from, when the awaited step of the move is committed."""
TARGET: Final = "target"
"""Target: the broker that a partition moves to."""
RECOVERER: Final = "recoverer"
"""Target: the broker that was told to recover the log of another."""
STEPS: Final = (
    "partition_move_begun",
    "stream_closed",
    "partition_changed",
    "stream_opened",
    "partition_move_cancelled",
    "node_drain_set",
    "node_fenced",
    "wal_recovery_assigned",
    "wal_trimmed",
    "wal_closed",
)
"""Kinds of records after which a step of a move or of a failover is done."""
OPENINGS: Final = ("node_registered", "wal_opened", "stream_created", "key_put", "stream_opened")
"""Targets of faults that strike whoever opens something that somebody must own or close: kinds of committed records. Who asked for it does not know the answer yet."""
OPENINGS_IN_BUCKETS: Final = ("objects_prepared", "objects_claimed", "put")
"""The same where there is a bucket; "put" is a call of it."""
OPENINGS_OF_COMPACTORS: Final = (
    "compaction_leased",
    "multipart_create",
    "multipart_part",
    "multipart_complete",
)
"""The same where objects are compacted; the last three are calls of the bucket."""


class FaultKind(Enum):
    """What can go wrong. `target` is a process, a direction "a>b", LEADER or EVERYBODY; `degree` is said per kind."""

    CRASH = "crash"
    """A machine loses its power (degree 1: sectors that were not synced are lost) or only its process (0); it is back after the duration."""
    CRASH_IN_OPERATION = "crash-in-operation"
    """The same with power loss, in the middle of the n-th disk operation from now on (degree n)."""
    CRASH_IN_STEP = "crash-in-step"
    """A machine loses its power in the moment in which the next record of a kind is committed: one of a move, or of a failover (degree: which of STEPS)."""
    BROKERS_CRASH = "brokers-crash"
    """All brokers but one lose their power at once (degree: which one does not)."""
    ZOMBIE = "zombie"
    """A broker stands still, with whatever it has under way, until everything was judged; then it goes on, knowing nothing."""
    POWER_CUT = "power-cut"
    """All machines lose their power at once."""
    STOP = "stop"
    """Somebody asks a process to end, in order; it must, and is started again."""
    PAUSE = "pause"
    """A process stands still; messages and timers wait for it."""
    LONG_PAUSE = "long-pause"
    """Any process, also one of a client, does not run for 1 to 60 s; the run goes on until it does again."""
    PAUSE_IN_TASK = "pause-in-task"
    """A compactor stands still a moment after it was given its next task (degree: seconds)."""
    CRASH_AT_OPEN = "crash-at-open"
    """Whoever opens something next loses its power before it hears that it was done."""
    LOST_AT_OPEN = "lost-at-open"
    """Whoever opens something next does not hear that it was done: its connections to the controllers break, or its call of the store times out."""
    PAUSE_AT_OPEN = "pause-at-open"
    """Whoever opens something next stands still before it hears that it was done."""
    CLOCK_DRIFT = "clock-drift"
    """A machine's clocks run at another rate (degree)."""
    CLOCK_JUMP = "clock-jump"
    """Somebody sets a machine's wall clock (degree: ms), and back after the duration."""
    RESET = "reset"
    """Every connection between two processes breaks, for both at once."""
    ABANDON = "abandon"
    """One end takes its connections for broken and connects again, while the other still reads what was under way."""
    CUT = "cut"
    """Nothing arrives in one direction."""
    ISOLATION = "isolation"
    """Nothing arrives at or from a process."""
    PARTITION = "partition"
    """A controller and the other controllers hear nothing of each other; everybody else hears all of them."""
    CUT_OFF = "cut-off"
    """A broker and the controllers hear nothing of each other; clients and the store still reach the broker."""
    STALE_LEADER = "stale-leader"
    """A controller stands still for the duration and hears nothing of the others, also for a while after it went on (degree: seconds)."""
    CLOG = "clog"
    """What is sent in one direction arrives only when this is over."""
    LOSS = "loss"
    """Frames of a direction are lost, with their connections (degree: share)."""
    DELAY = "delay"
    """Frames of a direction have a long tail of delays (degree: seconds)."""
    DISK_SLOW = "disk-slow"
    """Syncs of a machine take up to so long (degree: seconds)."""
    DISK_ERROR = "disk-error"
    """A write, sync or read of a machine fails (EIO), after some others passed (degree: how many)."""
    DISK_FULL = "disk-full"
    """A machine's disk takes no growth (ENOSPC)."""
    DISK_ROT = "disk-rot"
    """A stored bit of a machine flips while it is down. Only where the fault atlas leaves enough good copies."""
    STORE_ERRORS = "store-errors"
    """Calls of the object store fail, unapplied (503; degree: share)."""
    STORE_TIMEOUTS = "store-timeouts"
    """Calls are applied, and fail all the same (degree: share)."""
    STORE_SHORT_READS = "store-short-reads"
    """Gets return less than there is (degree: share)."""
    STORE_SLOW = "store-slow"
    """Calls take up to so long (degree: seconds)."""
    STORE_DOWN = "store-down"
    """No call succeeds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """See the module's docstring.

    Attributes:
        number: its place in the list that was drawn; it keeps it in every part of that list.
        at_s: when it begins, in virtual seconds after the workload began.
        duration_s: until it is taken back, or until who crashed is started again.
        degree: see `FaultKind`.
    """

    number: int
    at_s: float
    kind: FaultKind
    target: str
    duration_s: float
    degree: float = 0.0

    @property
    def direction(self) -> tuple[str, str]:
        """The two ends of a link's fault."""
        source, _, target = self.target.partition(">")
        return source, target

    def __str__(self) -> str:
        return (
            f"#{self.number:<3} at {self.at_s:7.3f} s  {self.kind.value:<18} {self.target:<24} for {self.duration_s:6.3f} s"
            + (f"  degree {self.degree:g}" if self.degree else "")
        )
