"""What the model of the object WAL is made of: states, and what may be dropped.

What lives here: values and the changes of one part of a state. What may happen when is `object_wal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

STREAMS = "ab"
OTHER = 0
"""The owner of a stream that was moved to another node: its log is not modelled, its appends are committed at once."""


class Record(NamedTuple):
    """One append: who wrote it, and where it belongs."""

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
    """A taker's work on one log: where it walks, what it kept, where the end is (-1: not found), which streams it has looked after."""

    log: int
    start: int
    at: int
    kept: tuple[Record, ...] = ()
    end: int = -1
    done: tuple[int, ...] = ()
    closed: bool = False


class Process(NamedTuple):
    """The process of one node epoch. `slots` are what it wrote, by sequence; `next_offsets` and `holds` are by stream (-1: not held)."""

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
    """A put on its way."""

    log: int
    sequence: int
    content: Record
    sender: int


class Answer(NamedTuple):
    """What a put's sender is told, if it ever hears it."""

    log: int
    sequence: int
    sender: int
    created: bool


class World(NamedTuple):
    """A state. The process of epoch t stands at place t - 1; the last one is the controller's current epoch."""

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
    """The rules; each may be dropped. R1 to R7 are those of docs/design/object-wal.md#safety-rules.

    Attributes:
        opened_before_put: R1: a process puts nothing before the controller lists its log as open.
        fenced: R2: a taker fences the hole at which it ends; otherwise it believes what it saw.
        taken_is_read: R2: a key found taken is read back; otherwise it is taken for the own put that came twice.
        acknowledged_in_order: R2: a slot is acknowledged when all below it are confirmed.
        fence_stays: R3: whoever deletes the slots leaves the fence.
        deleted_after_commit: R4: a slot is deleted when the trim point above it is committed.
        walks_from_trim: R4, R5: a walk begins at the trim point, not at the lowest slot that is listed.
        trim_with_bump: R5: logs and trim points are those of the moment in which the old epoch lost its rights, not older ones.
        only_open_logs: R5: what is not in the controller's list is left alone, whatever lies in the bucket.
        old_epochs_refused: R6: nothing of an older node epoch is committed.
        closed_when_all_done: R6: a log is closed when all of its streams are.
        stream_epoch_filter: R7: a record is committed only under the stream epoch it was written in.
        offset_filter: R7: what lies below the end of the stream is not committed again.
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
    """The controller's part of a commit, and what is wrong with it."""
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
    """The state with another stream in a place."""
    return state._replace(streams=(*state.streams[:at], stream, *state.streams[at + 1 :]))


def with_process(state: World, epoch: int, process: Process) -> World:
    """The state with another process of an epoch."""
    return state._replace(processes=(*state.processes[: epoch - 1], process, *state.processes[epoch:]))


def with_job(state: World, epoch: int, number: int, job: Job) -> World:
    """The state with another job of a process."""
    process = state.processes[epoch - 1]
    jobs = (*process.jobs[:number], job, *process.jobs[number + 1 :])
    return with_process(state, epoch, process._replace(jobs=jobs))


def replaced(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    """A tuple with another value in a place."""
    return (*values[:at], value, *values[at + 1 :])


def name(record: Record) -> str:
    """a0.1 is what the process of epoch 1 wrote to offset 0 of stream a."""
    return f"{STREAMS[record.stream]}{record.offset}.{record.writer}"
