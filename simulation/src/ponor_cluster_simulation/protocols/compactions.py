"""Compactions: which worker may replace which objects, and by which outputs.

These are the controller's rules; they use cluster time and offsets. A model may disable each rule by name.
`protocols.objects` has the rules for single objects; `CompactionLedger` compares the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from ponor_cluster_simulation.protocols.streams import NotAllowedError

Held: TypeAlias = tuple[int, int, int]
"""Stream, start, end: offsets in an object."""
StartOf: TypeAlias = Callable[[int], int | None]
"""Start of a stream; None if it is deleted."""


class Task(NamedTuple):
    """Objects that one worker (node, node epoch) may replace, under a token."""

    sources: tuple[int, ...]
    worker: tuple[int, int]
    token: int
    leased_until: int


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The rules; a model may disable each.

    Attributes:
        source_of_one_task: an object is the source of one task at a time.
        leased_when_vacant: another worker gets a task only after the lease or the worker has ended.
        token_rises: each lease of a task has a new token.
        swapped_by_holder: only the current worker swaps, once.
        holds_everything: the outputs contain all live data of the sources.
        holds_nothing_else: the outputs contain no other data.
        all_at_once: the remaining sources are destroyed when the outputs are committed.
    """

    source_of_one_task: bool = True
    leased_when_vacant: bool = True
    token_rises: bool = True
    swapped_by_holder: bool = True
    holds_everything: bool = True
    holds_nothing_else: bool = True
    all_at_once: bool = True


ALL_RULES: Final = CompactionRules()


def leased(
    known: Task | None,
    task: Task,
    now: int,
    *,
    taken: Iterable[int] = (),
    worker_is_over: bool = False,
    rules: CompactionRules = ALL_RULES,
) -> Task:
    """The task after a lease.

    Args:
        known: the task before; None if it is new.
        task: the task after.
        now: cluster time.
        taken: sources of all other tasks.
        worker_is_over: the current worker was fenced or replaced.
        rules: active rules.

    Raises:
        NotAllowedError: a source belongs to another task, the lease is live, or the token does not rise by
            one.
    """
    shared = set(task.sources) & set(taken)
    if rules.source_of_one_task and shared:
        raise NotAllowedError(f"objects {sorted(shared)} are sources of another task")
    if known is None:
        return task
    if rules.leased_when_vacant and not worker_is_over and now <= known.leased_until:
        raise NotAllowedError(
            f"a task is leased at {now}, but {known.worker} has it until {known.leased_until}"
        )
    if rules.token_rises and task.token != known.token + 1:
        raise NotAllowedError(f"token {task.token} of a task follows token {known.token}")
    return task


def swapped(
    task: Task | None,
    caller: tuple[int, int] | None,
    token: int | None,
    rules: CompactionRules = ALL_RULES,
) -> None:
    """Check that the caller may replace the task's sources. None means unknown.

    Raises:
        NotAllowedError: the task has ended, or another worker holds it.
    """
    if not rules.swapped_by_holder:
        return
    if task is None:
        raise NotAllowedError(f"{caller} commits a compaction task that has ended")
    if caller not in {None, task.worker} or token not in {None, task.token}:
        raise NotAllowedError(
            f"{caller} commits with token {token} the task of {task.worker} with token {task.token}"
        )


def covered(
    sources: Iterable[Held],
    outputs: Iterable[Held],
    start_of: StartOf,
    *,
    all_known: bool,
    rules: CompactionRules = ALL_RULES,
) -> None:
    """Check that the outputs may replace the sources.

    Args:
        sources: contents of the remaining sources.
        outputs: contents of the outputs.
        start_of: current starts of streams.
        all_known: no source was removed. The data of a removed source are trimmed, but an output may contain
            them.
        rules: active rules.

    Raises:
        NotAllowedError: offsets are missing, foreign, or contained twice.
    """
    held, made = _by_stream(sources), _by_stream(outputs)
    for stream in sorted({*held, *made}):
        old, new = held.get(stream, []), made.get(stream, [])
        start = start_of(stream)
        twice = next(((a, b) for a, b in pairwise(new) if b[0] < a[1]), None)
        if twice is not None:
            raise NotAllowedError(
                f"stream {stream}: the ranges {twice[0]} and {twice[1]} of the outputs overlap"
            )
        missing = [] if start is None else _without(_above(old, start), new)
        if rules.holds_everything and missing:
            raise NotAllowedError(f"stream {stream}: the outputs lack the ranges {missing} of the sources")
        foreign = _without(new if all_known else _above(new, start), old)
        if rules.holds_nothing_else and foreign:
            raise NotAllowedError(
                f"stream {stream}: the outputs contain the ranges {foreign}, which no source contains"
            )


def _by_stream(held: Iterable[Held]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for stream, start, end in sorted(held):
        found.setdefault(stream, []).append((start, end))
    return found


def _above(parts: Sequence[tuple[int, int]], start: int | None) -> list[tuple[int, int]]:
    if start is None:
        return []
    return [(max(begin, start), end) for begin, end in parts if end > start]


def _without(parts: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of `parts` outside all `others`."""
    left: list[tuple[int, int]] = []
    for begin, end in parts:
        at = begin
        for other_begin, other_end in others:
            if other_end <= at or other_begin >= end:
                continue
            if other_begin > at:
                left.append((at, other_begin))
            at = max(at, other_end)
        if at < end:
            left.append((at, end))
    return left


def require_unpinned(destroyed_at: int, begun_at: Iterable[int]) -> None:
    """Check that no lease keeps an object that a collector claims.

    Args:
        destroyed_at: when the object was destroyed.
        begun_at: starts of the live leases.

    Raises:
        NotAllowedError: a lease keeps the object.
    """
    oldest = min(begun_at, default=None)
    if oldest is not None and destroyed_at >= oldest:
        raise NotAllowedError(
            f"an object that was destroyed at {destroyed_at} is claimed, but a snapshot lease began at"
            f" {oldest}"
        )
