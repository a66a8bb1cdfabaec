"""A model of object life: writers that crash and retry, a collector, readers of old images, and a store.

They use the controller's rules (`ponor_cluster_simulation.protocols.objects`). Requests and answers
arrive at any later time, repeatedly, or never. Deletes may arrive arbitrarily late; puts until the
delay after their writer gave up, because a store's requests live for seconds and the delay lasts
minutes. Writers are processes of one node: the second registers while requests of the first are in
flight. An upload prepares an id, puts the object and commits; a writer that receives the answer
drops its only other copy. There are two clocks: true time, which writers and readers measure, and
cluster time, which stops without a leader and never runs ahead.

Properties: a committed object is in the store with its writer's content. A reader of an image younger than
the delay finds its objects. A request has one answer. An object without a row is not in the store.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ponor_cluster_simulation.protocols import objects
from ponor_cluster_simulation.protocols.objects import Object, ObjectRules, Phase
from ponor_cluster_simulation.protocols.streams import NotAllowedError

NODE = 1
COLLECTOR = (9, 1)
PREPARE, COMMIT, COMMIT_ANEW = 0, 1, 2
"""Request ids; every process starts again. A writer without an answer may repeat its commit under another id.
"""
REFUSED = -1
"""An answer; other answers are object ids."""


class Stage(IntEnum):
    """The progress of a writer's upload."""

    IDLE = 0
    ASKED = 1
    PUTTING = 2
    COMMITTING = 3
    DONE = 4


class Writer(NamedTuple):
    """A process that uploads one object. It puts and commits until `gives_up_at`, in true time."""

    stage: Stage = Stage.IDLE
    object_id: int = -1
    gives_up_at: int = 0
    anew: bool = False


class Collected(NamedTuple):
    """What the collector has recorded for an object: granted, and deleted in the store."""

    granted: bool = False
    deleted: bool = False


class Lives(NamedTuple):
    """A state. `rows` and `collected` are by object id; `store` has the writer of each content, or
    None.

    `kept` are stored results by request, `answers` all answers (writer, request, answer). `image`
    is a reader's: its time and its objects.
    """

    true: int = 0
    cluster: int = 0
    rows: tuple[Object, ...] = ()
    store: tuple[int | None, ...] = ()
    collected: tuple[Collected, ...] = ()
    writers: tuple[Writer, ...] = (Writer(),)
    kept: tuple[tuple[tuple[int, int], int, int], ...] = ()
    answers: frozenset[tuple[int, int, int]] = frozenset()
    image: tuple[int, tuple[int, ...]] = (0, ())


@dataclass(frozen=True, slots=True)
class SurroundingRules:
    """Rules outside the controller and in its session layer; a model may drop each.

    Attributes:
        results_kept: a repeated request gets its first answer.
        results_by_process_and_body: only the same process's request with the same body gets it.
        puts_end_with_lease: no put begins after the lease, and none is in flight longer than the delay.
        put_before_commit: a writer commits only stored objects.
        delete_before_confirm: a collector confirms only deleted objects.
        clock_never_leaps: cluster time does not run ahead of true time.
    """

    results_kept: bool = True
    results_by_process_and_body: bool = True
    puts_end_with_lease: bool = True
    put_before_commit: bool = True
    delete_before_confirm: bool = True
    clock_never_leaps: bool = True


@dataclass(frozen=True, slots=True)
class ObjectModel:
    """Bounds, and active rules."""

    objects_max: int = 2
    writers_max: int = 2
    time_max: int = 4
    lease: int = 1
    delay: int = 1
    rules: ObjectRules = objects.ALL_RULES
    surroundings: SurroundingRules = field(default_factory=SurroundingRules)

    def initial(self) -> Iterable[Lives]:
        return [Lives()]

    def steps(self, state: Lives) -> Iterator[tuple[str, Lives]]:
        yield from self._time(state)
        for number, writer in enumerate(state.writers):
            yield from self._requests(state, number, writer)
            yield from self._writer(state, number, writer)
        for object_id, row in enumerate(state.rows):
            yield from self._collector(state, object_id, row)
        named = tuple(number for number, row in enumerate(state.rows) if row.phase is Phase.COMMITTED)
        if state.image != (state.true, named):
            yield f"read takes the image with {_listed(named)}", state._replace(image=(state.true, named))
        if len(state.writers) < self.writers_max:
            yield "restart the writer", state._replace(writers=(*state.writers, Writer()))

    def violation(self, state: Lives) -> str | None:
        for object_id, (row, content) in enumerate(zip(state.rows, state.store, strict=True)):
            if row.phase is Phase.COMMITTED and content is None:
                return f"object {object_id} is committed and not in the store"
            if row.phase is Phase.GONE and content is not None:
                return f"object {object_id} is forgotten and still in the store"
        read_at, named = state.image
        for object_id in named:
            if state.store[object_id] is None and state.true - read_at <= self.delay:
                return f"object {object_id} is missed by a reader whose image is {state.true - read_at} old"
        for number, writer in enumerate(state.writers):
            if writer.stage is Stage.DONE and not _is_kept(state, number, writer.object_id):
                return f"writer {number} dropped its copy, and object {writer.object_id} does not hold it"
        answered = [answer[:2] for answer in state.answers]
        return "a request had two answers" if len(set(answered)) != len(answered) else None

    def canonical(self, state: Lives) -> Hashable:
        return state

    def show(self, state: Lives) -> str:
        rows = " ".join(
            f"{number}:{row.phase.name}{'' if content is None else f'(content of {content})'}"
            for number, (row, content) in enumerate(zip(state.rows, state.store, strict=True))
        )
        writers = " ".join(writer.stage.name.lower() for writer in state.writers)
        return f"time {state.true}/{state.cluster} objects [{rows}] writers [{writers}]"

    def _time(self, state: Lives) -> Iterator[tuple[str, Lives]]:
        if state.true < self.time_max:
            yield "tick of both clocks", state._replace(true=state.true + 1, cluster=state.cluster + 1)
            yield "stall of cluster time", state._replace(true=state.true + 1)
        if not self.surroundings.clock_never_leaps and state.cluster < self.time_max + self.delay:
            yield "leap of cluster time", state._replace(cluster=state.cluster + 1 + self.delay)

    def _writer(self, state: Lives, number: int, writer: Writer) -> Iterator[tuple[str, Lives]]:
        newest = number == len(state.writers) - 1
        match writer.stage:
            case Stage.IDLE if newest:
                asked = Writer(Stage.ASKED, gives_up_at=state.true + self.lease)
                yield f"ask writer {number} wants an object", _with_writer(state, number, asked)
            case Stage.ASKED if newest:
                for who, request, answer in sorted(state.answers):
                    if (who, request) == (number, PREPARE) and answer != REFUSED:
                        putting = writer._replace(stage=Stage.PUTTING, object_id=answer)
                        yield (
                            f"hear writer {number} has object {answer}",
                            _with_writer(state, number, putting),
                        )
            case Stage.PUTTING if newest and state.true <= writer.gives_up_at:
                if state.store[writer.object_id] is not None or not self.surroundings.put_before_commit:
                    committing = writer._replace(stage=Stage.COMMITTING)
                    yield (
                        f"upload writer {number} commits object {writer.object_id}",
                        _with_writer(state, number, committing),
                    )
            case Stage.COMMITTING if newest and (number, COMMIT, writer.object_id) in state.answers:
                yield (
                    f"drop writer {number} drops its copy",
                    _with_writer(state, number, writer._replace(stage=Stage.DONE)),
                )
            case Stage.COMMITTING if newest and not writer.anew:
                yield (
                    f"repeat writer {number} commits under another id",
                    _with_writer(state, number, writer._replace(anew=True)),
                )
        if writer.stage is not Stage.PUTTING:
            return
        in_time = state.true <= writer.gives_up_at + self.delay or not self.surroundings.puts_end_with_lease
        if state.store[writer.object_id] is None and in_time:
            yield (
                f"put writer {number}'s object {writer.object_id} arrives",
                _stored(state, writer.object_id, number),
            )

    def _requests(self, state: Lives, number: int, writer: Writer) -> Iterator[tuple[str, Lives]]:
        """Arrivals of sent requests; those of a replaced process are refused without effect."""
        if number != len(state.writers) - 1:
            return
        if writer.stage >= Stage.ASKED:
            yield from self._arrival(state, number, PREPARE, -1, f"deliver writer {number}'s prepare")
        if writer.stage >= Stage.COMMITTING:
            what = f"deliver writer {number}'s commit of object {writer.object_id}"
            yield from self._arrival(state, number, COMMIT, writer.object_id, what)
            if writer.anew:
                yield from self._arrival(
                    state, number, COMMIT_ANEW, writer.object_id, f"{what} under another id"
                )

    def _arrival(
        self, state: Lives, number: int, request: int, body: int, label: str
    ) -> Iterator[tuple[str, Lives]]:
        strict = self.surroundings.results_by_process_and_body
        if self.surroundings.results_kept:
            for (process, known), known_body, result in state.kept:
                if known == request and (not strict or (process, known_body) == (number, body)):
                    yield (
                        f"{label} again",
                        _answered(state, number, request, result if strict or request == PREPARE else body),
                    )
                    return
        try:
            after, result = self._executed(state, number, request, body)
        except NotAllowedError:
            yield f"{label}, refused", _answered(state, number, request, REFUSED)
            return
        kept = (*after.kept, ((number, request), body, result)) if self.surroundings.results_kept else ()
        yield label, _answered(after._replace(kept=kept), number, request, result)

    def _executed(self, state: Lives, number: int, request: int, body: int) -> tuple[Lives, int]:
        if request != PREPARE:
            row = objects.committed(state.rows[body], NODE, number, state.cluster, self.rules)
            return _with_row(state, body, row), body
        free = next((at for at, row in enumerate(state.rows) if row.phase is Phase.GONE), len(state.rows))
        object_id = len(state.rows) if self.rules.ids_once else free
        if object_id == self.objects_max:
            raise NotAllowedError("no more ids in this model")
        known = state.rows[object_id] if object_id < len(state.rows) else None
        row = objects.prepared(known, NODE, number, state.cluster + self.lease, self.rules)
        if known is not None:
            return _with_row(state, object_id, row), object_id
        return state._replace(
            rows=(*state.rows, row), store=(*state.store, None), collected=(*state.collected, Collected())
        ), object_id

    def _collector(self, state: Lives, object_id: int, row: Object) -> Iterator[tuple[str, Lives]]:
        known = state.collected[object_id]
        if row.phase is Phase.COMMITTED:
            yield (
                f"trim object {object_id}",
                _with_row(state, object_id, objects.destroyed(row, state.cluster)),
            )
        if not known.granted:
            try:
                claimed = objects.claimed(row, COLLECTOR, state.cluster, 0, self.delay, self.rules)
                yield (
                    f"claim object {object_id}",
                    _with_row(_knowing(state, object_id, Collected(granted=True)), object_id, claimed),
                )
            except NotAllowedError:
                pass
        if known.granted:
            after = _knowing(state, object_id, known._replace(deleted=True))
            store = tuple(None if at == object_id else content for at, content in enumerate(state.store))
            if after._replace(store=store) != state:
                yield f"delete object {object_id} from the store", after._replace(store=store)
        may_confirm = (
            known.deleted
            or (known.granted and not self.surroundings.delete_before_confirm)
            or not self.rules.remove_needs_claim
        )
        if may_confirm and row.phase is Phase.DESTROYED:
            try:
                yield (
                    f"forget object {object_id}",
                    _with_row(state, object_id, objects.removed(row, COLLECTOR, self.rules)),
                )
            except NotAllowedError:
                return


def _is_kept(state: Lives, number: int, object_id: int) -> bool:
    """Whether the object took over the writer's content; a later trim may remove it."""
    row = state.rows[object_id]
    content = state.store[object_id]
    return row.node_epoch == number and row.phase is not Phase.PREPARED and content in {number, None}


def _answered(state: Lives, number: int, request: int, answer: int) -> Lives:
    return state._replace(answers=state.answers | {(number, request, answer)})


def _stored(state: Lives, object_id: int, writer: int) -> Lives:
    """The store after a create-only put. A second writer takes the existing object for its own repeated
    put.
    """
    return state._replace(
        store=tuple(writer if at == object_id else content for at, content in enumerate(state.store))
    )


def _with_row(state: Lives, object_id: int, row: Object) -> Lives:
    return state._replace(rows=(*state.rows[:object_id], row, *state.rows[object_id + 1 :]))


def _with_writer(state: Lives, number: int, writer: Writer) -> Lives:
    return state._replace(writers=(*state.writers[:number], writer, *state.writers[number + 1 :]))


def _knowing(state: Lives, object_id: int, known: Collected) -> Lives:
    return state._replace(collected=(*state.collected[:object_id], known, *state.collected[object_id + 1 :]))


def _listed(named: tuple[int, ...]) -> str:
    return f"objects {', '.join(map(str, named))}" if named else "no object"
