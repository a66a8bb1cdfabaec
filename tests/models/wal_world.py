"""States and rules of the model of the object WAL (`object_wal`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

STREAMS = "ab"
OTHER = 0
"""The owner of a stream that moved to another node. Its log is not modelled; its appends are
committed at once.
"""


class Record(NamedTuple):
    """One append: its writer and its place."""

    stream: int
    stream_epoch: int
    offset: int
    writer: int


FENCE = Record(-1, -1, -1, -1)


class Stream(NamedTuple):
    """A stream at the controller; `owner` is a node epoch, or OTHER."""

    is_open: bool
    epoch: int
    owner: int
    content: tuple[Record, ...] = ()


class Job(NamedTuple):
    """A recoverer's work on one log: position, kept records, end (-1 if not found), finished streams."""

    log: int
    start: int
    at: int
    kept: tuple[Record, ...] = ()
    end: int = -1
    done: tuple[int, ...] = ()
    closed: bool = False


class Process(NamedTuple):
    """The process of one node epoch. `slots` has its writes by sequence; `next_offsets` and `holds`
    are by stream (-1: not held).
    """

    peeked: tuple[tuple[int, int], ...] | None = None
    jobs: tuple[Job, ...] = ()
    wal_open: bool = False
    stopped: bool = False
    slots: tuple[Record, ...] = ()
    confirmed: frozenset[int] = frozenset()
    acknowledged: frozenset[int] = frozenset()
    trim: int = 0
    deleted: int = 0
    holds: tuple[int, ...] = ()
    next_offsets: tuple[int, ...] = ()


class Put(NamedTuple):
    """A put in flight."""

    log: int
    sequence: int
    content: Record
    sender: int


class Answer(NamedTuple):
    """The answer to a put, which may never arrive."""

    log: int
    sequence: int
    sender: int
    created: bool


class World(NamedTuple):
    """A state. The process of epoch t is at place t - 1; the last one has the controller's current epoch."""

    open_logs: tuple[tuple[int, int], ...]
    streams: tuple[Stream, ...]
    processes: tuple[Process, ...]
    store: frozenset[tuple[int, int, Record]]
    puts: frozenset[Put] = frozenset()
    answers: frozenset[Answer] = frozenset()
    deletes: frozenset[tuple[int, int]] = frozenset()
    copies: int = 0
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class WalRules:
    """The rules; a model may drop each. R1 to R7 are those of docs/design/object-wal.md#safety-rules.

    Attributes:
        opened_before_put: R1: no put begins before the controller lists the log as open.
        fenced: R2: a recoverer fences the gap at which it ends; without the rule it trusts its reads.
        taken_is_read: R2: a taken key is read back; without the rule it counts as the own put's repetition.
        acknowledged_in_order: R2: a slot is acknowledged when all earlier ones are confirmed.
        fence_stays: R3: a fence is not deleted with the slots.
        deleted_after_commit: R4: a slot is deleted when the trim point above it is committed.
        walks_from_trim: R4, R5: a walk begins at the trim point, not at the lowest listed slot.
        trim_with_bump: R5: logs and trim points are those at the end of the old epoch, not older ones.
        only_open_logs: R5: slots of logs that the controller does not list are ignored.
        old_epochs_refused: R6: nothing of an older node epoch is committed.
        closed_when_all_done: R6: a log is closed when all its streams are.
        stream_epoch_filter: R7: a record is committed only under its own stream epoch.
        offset_filter: R7: records below the end of the stream are not committed again.
        opened_after_recovery: R7: a stream is opened when it is closed at all older epochs.
    """

    opened_before_put: bool = True
    fenced: bool = True
    taken_is_read: bool = True
    acknowledged_in_order: bool = True
    fence_stays: bool = True
    deleted_after_commit: bool = True
    walks_from_trim: bool = True
    trim_with_bump: bool = True
    only_open_logs: bool = True
    old_epochs_refused: bool = True
    closed_when_all_done: bool = True
    stream_epoch_filter: bool = True
    offset_filter: bool = True
    opened_after_recovery: bool = True


ALL_RULES = WalRules()


def committed(state: World, record: Record) -> World:
    """The controller's part of a commit, and its violation if any."""
    stream = state.streams[record.stream]
    wrong = None
    if record in stream.content:
        wrong = f"{name(record)} is committed twice"
    elif record.stream_epoch != stream.epoch:
        wrong = f"{name(record)} of stream epoch {record.stream_epoch} is committed at epoch {stream.epoch}"
    elif record.offset != len(stream.content):
        wrong = f"{name(record)} is committed where the stream ends at {len(stream.content)}"
    after = with_stream(state, record.stream, stream._replace(content=(*stream.content, record)))
    return after if wrong is None else after._replace(wrong=wrong)


def with_stream(state: World, at: int, stream: Stream) -> World:
    """The state with a replaced stream."""
    return state._replace(streams=(*state.streams[:at], stream, *state.streams[at + 1 :]))


def with_process(state: World, epoch: int, process: Process) -> World:
    """The state with a replaced process."""
    return state._replace(processes=(*state.processes[: epoch - 1], process, *state.processes[epoch:]))


def with_job(state: World, epoch: int, number: int, job: Job) -> World:
    """The state with a replaced job."""
    process = state.processes[epoch - 1]
    jobs = (*process.jobs[:number], job, *process.jobs[number + 1 :])
    return with_process(state, epoch, process._replace(jobs=jobs))


def replaced(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    """A tuple with one replaced value."""
    return (*values[:at], value, *values[at + 1 :])


def name(record: Record) -> str:
    """a0.1 is the record of epoch 1 at offset 0 of stream a."""
    return f"{STREAMS[record.stream]}{record.offset}.{record.writer}"
