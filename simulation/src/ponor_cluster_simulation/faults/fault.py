"""One fault: kind, target, time, duration and degree.

A fault contains everything that its execution depends on. Its meaning therefore does not depend on which
other faults a run executes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

ALL_MACHINES: Final = "all"
"""Target of faults that affect all machines or something that they share."""
LEADER: Final = "leader"
"""Target: the controller that leads when the fault begins; the first controller if none leads."""
SOURCE: Final = "source"
"""Target: the source broker of a move, when the awaited step of the move is committed."""
TARGET: Final = "target"
"""Target: the target broker of a move."""
RECOVERER: Final = "recoverer"
"""Target: the broker that recovers the log of another broker."""
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
"""Kinds of records that are steps of moves or failovers."""
OPENINGS: Final = ("node_registered", "wal_opened", "stream_created", "key_put", "stream_opened")
"""Targets of opening faults: kinds of committed records that create a resource, which a process must own or
close.

The fault affects the process that requested the record, before it receives the answer.
"""
OPENINGS_IN_BUCKETS: Final = ("objects_prepared", "objects_claimed", "put")
"""Additional targets in clusters with a bucket; "put" is a call of the bucket."""
OPENINGS_OF_COMPACTORS: Final = (
    "compaction_leased",
    "multipart_create",
    "multipart_part",
    "multipart_complete",
)
"""Additional targets in clusters with compactors; the last three are calls of the bucket."""


class FaultKind(Enum):
    """Kinds of faults. `target` is a process, a direction "a>b", LEADER or ALL_MACHINES; each kind
    defines `degree`.
    """

    CRASH = "crash"
    """A machine loses power (degree 1: unsynced sectors are lost), or its process is killed (degree 0). The
    process restarts after the duration.
    """
    CRASH_IN_OPERATION = "crash-in-operation"
    """A machine loses power during the n-th disk operation from now on (degree n)."""
    CRASH_IN_STEP = "crash-in-step"
    """A machine loses power when the next record of a kind is committed (degree: index into STEPS)."""
    BROKERS_CRASH = "brokers-crash"
    """All brokers except one lose power at once (degree: index of the one that keeps it)."""
    ZOMBIE = "zombie"
    """A broker is paused until the cluster has replaced it and the judgement is over; then it resumes."""
    POWER_CUT = "power-cut"
    """All machines lose power at once."""
    STOP = "stop"
    """A process receives SIGTERM and must end; the supervisor restarts it."""
    PAUSE = "pause"
    """A process is paused; its messages and timers wait."""
    LONG_PAUSE = "long-pause"
    """Any process, also a client's, is paused for 1 to 60 s; the run continues until it has resumed."""
    PAUSE_IN_TASK = "pause-in-task"
    """A compactor is paused shortly after it received its next task (degree: delay in seconds)."""
    CRASH_AT_OPEN = "crash-at-open"
    """The next process that opens the target loses power before it receives the answer."""
    LOST_AT_OPEN = "lost-at-open"
    """The next process that opens the target loses the answer: its connections reset, or its store
    call times out.
    """
    PAUSE_AT_OPEN = "pause-at-open"
    """The next process that opens the target is paused before it receives the answer."""
    CLOCK_DRIFT = "clock-drift"
    """A machine's clocks have another rate (degree)."""
    CLOCK_JUMP = "clock-jump"
    """A machine's wall clock is set (degree: ms), and set back after the duration."""
    RESET = "reset"
    """All connections between two processes are reset at both ends."""
    ABANDON = "abandon"
    """One end abandons its connections and reconnects; the other end still reads frames in flight."""
    CUT = "cut"
    """No frame of one direction arrives."""
    ISOLATION = "isolation"
    """No frame to or from a process arrives."""
    PARTITION = "partition"
    """A controller and the other controllers are disconnected; other processes still reach all of them."""
    CUT_OFF = "cut-off"
    """A broker and the controllers are disconnected; clients and the store still reach the broker."""
    STALE_LEADER = "stale-leader"
    """A controller is paused, and stays disconnected from the others for a while after it resumes
    (degree: seconds).
    """
    CLOG = "clog"
    """Frames sent in one direction arrive when the fault ends."""
    LOSS = "loss"
    """Frames of a direction are lost, and their connections end (degree: share)."""
    DELAY = "delay"
    """Frames of a direction have a long tail of delays (degree: seconds)."""
    DISK_SLOW = "disk-slow"
    """Syncs of a machine take up to `degree` seconds."""
    DISK_ERROR = "disk-error"
    """A write, sync or read of a machine fails with EIO after `degree` others succeeded."""
    DISK_FULL = "disk-full"
    """Files on a machine's disk cannot grow (ENOSPC)."""
    DISK_ROT = "disk-rot"
    """A stored bit of a machine flips while it is down. The draw leaves enough undamaged copies."""
    STORE_ERRORS = "store-errors"
    """Calls of the object store fail without effect (503; degree: share)."""
    STORE_TIMEOUTS = "store-timeouts"
    """Calls of the object store take effect, but return a timeout (degree: share)."""
    STORE_SHORT_READS = "store-short-reads"
    """Gets return fewer bytes than stored (degree: share)."""
    STORE_SLOW = "store-slow"
    """Calls of the object store take up to `degree` seconds."""
    STORE_DOWN = "store-down"
    """No call of the object store succeeds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule.

    Attributes:
        number: the fault's index in the drawn schedule; a part of the schedule keeps the numbers.
        at_s: start, in virtual seconds after the workload began.
        duration_s: until the fault ends, or until a crashed process restarts.
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
        """The source and destination process of a fault of a link."""
        source, _, target = self.target.partition(">")
        return source, target

    def __str__(self) -> str:
        return (
            f"#{self.number:<3} at {self.at_s:7.3f} s  {self.kind.value:<18} {self.target:<24} for"
            f" {self.duration_s:6.3f} s" + (f"  degree {self.degree:g}" if self.degree else "")
        )
