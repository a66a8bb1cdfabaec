"""A model of compaction: objects are replaced while their stream is trimmed, deleted, read and collected.

Workers, a collector and readers use the controller's rules (`ponor_cluster_simulation.protocols`).
There is one stream; each initial object holds one offset, and the last one is uploaded at some
time. A worker leases objects, plans anything (it may have a bug or old metadata), puts one object
and commits. It may pause anywhere, and its commit may arrive at any later time, repeatedly. A
worker that never continues has crashed.

Properties: one committed object in the store holds each offset from the start on. A committed object has live
data. A reader finds the objects of its image until the delay has passed, or until its lease ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, NamedTuple

from ponor_cluster_simulation.protocols import compactions, objects
from ponor_cluster_simulation.protocols.compactions import CompactionRules, Held, Task
from ponor_cluster_simulation.protocols.objects import Object, ObjectRules, Phase
from ponor_cluster_simulation.protocols.streams import NotAllowedError

STREAM: Final = 0
BROKER: Final = (8, 1)
COLLECTOR: Final = (9, 1)
FOR_EVER: Final = 1_000


class Thing(NamedTuple):
    """An object: its row, its offsets, and whether it is stored."""

    row: Object
    held: tuple[int, ...]
    stored: bool
    granted: bool = False


class Worker(NamedTuple):
    """A worker: its task and token, and the object that it put (-1 before). `sources` are the
    objects to replace.
    """

    task: int = -1
    token: int = 0
    sources: tuple[int, ...] = ()
    output: int = -1


class Reader(NamedTuple):
    """Objects of an image, and the time of the image."""

    begun_at: int
    named: tuple[int, ...]


class Compacted(NamedTuple):
    """A state. `start` is None after the stream's deletion; `tasks` by number, None after their
    end.

    One reader has an image, another one a lease.
    """

    time: int
    start: int | None
    things: tuple[Thing, ...]
    tasks: tuple[Task | None, ...] = ()
    workers: tuple[Worker, ...] = ()
    image: Reader | None = None
    lease: Reader | None = None


@dataclass(frozen=True, slots=True)
class AroundRules:
    """Rules outside the controller's; a model may drop each.

    Attributes:
        lease_keeps: no object is claimed that was destroyed under a snapshot lease.
        put_before_commit: a worker commits only stored objects.
    """

    lease_keeps: bool = True
    put_before_commit: bool = True


@dataclass(frozen=True, slots=True)
class CompactionModel:
    """Bounds, and active rules."""

    uploads: int = 2
    uploads_later: int = 0
    workers: int = 2
    outputs_max: int = 2
    tasks_max: int = 1
    time_max: int = 2
    delay: int = 0
    trims: bool = True
    leases: bool = False
    images: bool = False
    rules: CompactionRules = compactions.ALL_RULES
    object_rules: ObjectRules = objects.ALL_RULES
    around: AroundRules = field(default_factory=AroundRules)

    def initial(self) -> Iterable[Compacted]:
        things = tuple(_uploaded(offset) for offset in range(self.uploads))
        yield Compacted(0, 0, things, workers=(Worker(),) * self.workers)

    def steps(self, state: Compacted) -> Iterator[tuple[str, Compacted]]:
        if state.time < self.time_max:
            yield "tick", state._replace(time=state.time + 1)
        for number in range(len(state.workers)):
            yield from self._work(state, number)
        yield from self._stream(state)
        for number, thing in enumerate(state.things):
            yield from self._collect(state, number, thing)
        yield from self._read(state)

    def violation(self, state: Compacted) -> str | None:
        in_use = [(n, each) for n, each in enumerate(state.things) if each.row.phase is Phase.COMMITTED]
        for offset in _wanted(state):
            holders = [number for number, each in in_use if offset in each.held]
            if len(holders) != 1:
                return f"offset {offset} is held {len(holders)} times"
        for number, each in in_use:
            if not each.stored:
                return f"object {number} is committed and not in the store"
            if not set(each.held) & set(_wanted(state)):
                return f"object {number} holds nothing that is wanted, and stays"
        for reader, is_kept in ((state.lease, True), (state.image, False)):
            if reader is None or (not is_kept and state.time - reader.begun_at > self.delay):
                continue
            for number in reader.named:
                if not state.things[number].stored:
                    return (
                        f"object {number} is missed by a reader"
                        f" {'with a lease' if is_kept else 'of an image'}"
                    )
        return None

    def canonical(self, state: Compacted) -> Hashable:
        return state._replace(workers=tuple(sorted(state.workers))) if not state.tasks else state

    def show(self, state: Compacted) -> str:
        things = " ".join(
            f"{number}:{each.row.phase.name}{list(each.held)}{'' if each.stored else ' gone'}"
            for number, each in enumerate(state.things)
        )
        return (
            f"time {state.time} start {state.start} objects [{things}] tasks {state.tasks} workers"
            f" {state.workers}"
        )

    # Workers

    def _work(self, state: Compacted, number: int) -> Iterator[tuple[str, Compacted]]:
        worker = state.workers[number]
        if worker.task == -1:
            yield from self._lease(state, number)
        elif worker.output == -1:
            if len(state.things) < self.uploads + self.uploads_later + self.outputs_max:
                yield from self._put(state, number, worker)
        else:
            yield from self._commit(state, number, worker)
            yield f"forget worker {number} begins anew", _with_worker(state, number, Worker())

    def _lease(self, state: Compacted, number: int) -> Iterator[tuple[str, Compacted]]:
        """Lease a new task, or one that another worker has."""
        free = tuple(n for n, each in enumerate(state.things) if each.row.phase is Phase.COMMITTED)
        names = [n for n, each in enumerate(state.tasks) if each is not None]
        if len(state.tasks) < self.tasks_max:
            names.append(len(state.tasks))
        for name in names:
            known = state.tasks[name] if name < len(state.tasks) else None
            sources = free if known is None else tuple(n for n in known.sources if n in free)
            if not sources:
                continue
            token = 1 if known is None else known.token + self.rules.token_rises
            task = Task(sources, (number, 1), token, state.time)
            taken = [s for n, each in enumerate(state.tasks) if each and n != name for s in each.sources]
            try:
                compactions.leased(known, task, state.time, taken=taken, rules=self.rules)
            except NotAllowedError:
                continue
            after = _with_worker(state, number, Worker(name, token, sources))
            yield f"lease worker {number} has task {name}", _with_task(after, name, task)

    def _put(self, state: Compacted, number: int, worker: Worker) -> Iterator[tuple[str, Compacted]]:
        """Put an object with any offsets of the stream. What it copies must be stored."""
        if not all(state.things[source].stored for source in worker.sources):
            yield f"forget worker {number} misses a source", _with_worker(state, number, Worker())
            return
        row = objects.prepared(None, number, 1, FOR_EVER)
        stores = (True,) if self.around.put_before_commit else (True, False)
        offsets = range(self.uploads + self.uploads_later)
        for count in range(1, len(offsets) + 1):
            for held in combinations(offsets, count):
                for stored in stores:
                    made = state._replace(things=(*state.things, Thing(row, held, stored)))
                    after = _with_worker(made, number, worker._replace(output=len(state.things)))
                    yield f"put worker {number} writes {list(held)}", after

    def _commit(self, state: Compacted, number: int, worker: Worker) -> Iterator[tuple[str, Compacted]]:
        """A commit arrives; it may arrive again."""
        task = state.tasks[worker.task]
        try:
            compactions.swapped(task, (number, 1), worker.token, self.rules)
            sources = task.sources if task is not None else worker.sources
            left = [n for n in sources if state.things[n].row.phase is Phase.COMMITTED]
            output = state.things[worker.output]
            compactions.covered(
                _held(state.things[n] for n in left),
                _held([output]),
                lambda _: state.start,
                all_known=len(left) == len(sources),
                rules=self.rules,
            )
            after = self._swapped(state, worker.output, number, left)
        except NotAllowedError:
            return
        if task is not None:
            after = _with_task(after, worker.task, None)
        yield f"commit worker {number} swaps {left} for {worker.output}", after

    def _swapped(self, state: Compacted, output: int, number: int, left: list[int]) -> Compacted:
        if not left:
            raise NotAllowedError("all sources were removed")
        row = objects.committed(state.things[output].row, number, 1, state.time, self.object_rules)
        if not set(state.things[output].held) & set(_wanted(state)):
            row = objects.destroyed(state.things[output].row, state.time)
        after = _with_row(state, output, row)
        for source in left if self.rules.all_at_once else left[1:]:
            after = _with_row(after, source, objects.destroyed(after.things[source].row, state.time))
        return after

    # Trims, uploads, collection, readers

    def _stream(self, state: Compacted) -> Iterator[tuple[str, Compacted]]:
        if state.start is None:
            return
        end = _end(state)
        if end < self.uploads + self.uploads_later:
            yield "upload the next offset", state._replace(things=(*state.things, _uploaded(end)))
        if self.trims:
            if state.start < end:
                yield f"trim to {state.start + 1}", _without_dead(state._replace(start=state.start + 1))
            yield "delete the stream", _without_dead(state._replace(start=None))

    def _collect(self, state: Compacted, number: int, thing: Thing) -> Iterator[tuple[str, Compacted]]:
        if thing.row.phase is not Phase.DESTROYED or not thing.stored:
            return
        if thing.granted:
            gone = thing._replace(stored=False)
            yield f"remove object {number} from the store", _with_thing(state, number, gone)
            return
        try:
            if self.around.lease_keeps and state.lease is not None:
                compactions.require_unpinned(thing.row.destroyed_at, [state.lease.begun_at])
            row = objects.claimed(thing.row, COLLECTOR, state.time, FOR_EVER, self.delay, self.object_rules)
        except NotAllowedError:
            return
        yield f"claim object {number}", _with_thing(state, number, thing._replace(row=row, granted=True))

    def _read(self, state: Compacted) -> Iterator[tuple[str, Compacted]]:
        named = tuple(n for n, each in enumerate(state.things) if each.row.phase is Phase.COMMITTED)
        reader = Reader(state.time, named)
        if self.images and named and state.image != reader:
            yield "read takes an image", state._replace(image=reader)
        if self.leases and named and state.lease is None:
            yield "open a lease", state._replace(lease=reader)
        if state.lease is not None:
            yield "close the lease", state._replace(lease=None)


def _uploaded(offset: int) -> Thing:
    return Thing(objects.prepared(None, *BROKER, FOR_EVER)._replace(phase=Phase.COMMITTED), (offset,), True)


def _wanted(state: Compacted) -> range:
    """Uploaded offsets from the start on."""
    if state.start is None:
        return range(0)
    return range(state.start, _end(state))


def _end(state: Compacted) -> int:
    """The end of the stream: a broker's object holds one offset."""
    return sum((each.row.node, each.row.node_epoch) == BROKER for each in state.things)


def _held(things: Iterable[Thing]) -> list[Held]:
    return [(STREAM, offset, offset + 1) for thing in things for offset in thing.held]


def _without_dead(state: Compacted) -> Compacted:
    """Destroy objects without live data."""
    wanted = set(_wanted(state))
    for number, each in enumerate(state.things):
        if each.row.phase is Phase.COMMITTED and not set(each.held) & wanted:
            state = _with_row(state, number, objects.destroyed(each.row, state.time))
    return state


def _with_row(state: Compacted, number: int, row: Object) -> Compacted:
    return _with_thing(state, number, state.things[number]._replace(row=row))


def _with_thing(state: Compacted, number: int, thing: Thing) -> Compacted:
    return state._replace(things=(*state.things[:number], thing, *state.things[number + 1 :]))


def _with_worker(state: Compacted, number: int, worker: Worker) -> Compacted:
    return state._replace(workers=(*state.workers[:number], worker, *state.workers[number + 1 :]))


def _with_task(state: Compacted, name: int, task: Task | None) -> Compacted:
    return state._replace(tasks=(*state.tasks[:name], task, *state.tasks[name + 1 :]))
