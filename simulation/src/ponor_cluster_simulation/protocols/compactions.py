"""Compactions: who may replace which objects, and by what.

What lives here: the rules at the controller, in cluster time, on offsets. Each can be dropped by name, for models that show what it is there for; nothing else drops one. What becomes of the
objects themselves is `objects`, whether the bytes are the same is the ledger's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from ponor_cluster_simulation.protocols.streams import NotAllowedError

Held: TypeAlias = tuple[int, int, int]
"""Stream, start, end: offsets that an object holds."""
StartOf: TypeAlias = Callable[[int], int | None]
"""Where a stream begins; None when it is deleted."""


class Task(NamedTuple):
    """Objects that one worker (node, node epoch) may replace, under a token."""

    sources: tuple[int, ...]
    worker: tuple[int, int]
    token: int
    leased_until: int


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The rules; each may be dropped.

    Attributes:
        source_of_one_task: an object is the source of one task at a time.
        leased_when_vacant: a task goes to another worker when its lease, or its worker, is over.
        token_rises: each lease of a task has a new token.
        swapped_by_holder: only who has the task swaps, once.
        holds_everything: the outputs hold all that the sources hold and somebody may still ask for.
        holds_nothing_else: they hold nothing that the sources do not.
        all_at_once: everything that is left of the sources goes when the outputs come.
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
    """The task in the hands of a worker.

    Args:
        known: the task as it was; None: it is new.
        task: as it will be.
        now: cluster time.
        taken: sources of all other tasks.
        worker_is_over: whoever has the task now lost its rights, or was replaced.
        rules: which hold.

    Raises:
        NotAllowedError: a source is another task's, somebody has the task, or the token does not follow.
    """
    shared = set(task.sources) & set(taken)
    if rules.source_of_one_task and shared:
        raise NotAllowedError(f"objects {sorted(shared)} are sources of another task")
    if known is None:
        return task
    if rules.leased_when_vacant and not worker_is_over and now <= known.leased_until:
        raise NotAllowedError(f"a lease at {now} of what {known.worker} has until {known.leased_until}")
    if rules.token_rises and task.token != known.token + 1:
        raise NotAllowedError(f"token {task.token} after {known.token}")
    return task


def swapped(
    task: Task | None,
    caller: tuple[int, int] | None,
    token: int | None,
    rules: CompactionRules = ALL_RULES,
) -> None:
    """Whether the caller may put outputs in the place of the task's sources. None for what is not known.

    Raises:
        NotAllowedError: the task is over, or another's.
    """
    if not rules.swapped_by_holder:
        return
    if task is None:
        raise NotAllowedError(f"{caller} swaps for a task that is over")
    if caller not in {None, task.worker} or token not in {None, task.token}:
        raise NotAllowedError(f"{caller} swaps under token {token} what {task.worker} has under {task.token}")


def covered(
    sources: Iterable[Held],
    outputs: Iterable[Held],
    start_of: StartOf,
    *,
    all_known: bool,
    rules: CompactionRules = ALL_RULES,
) -> None:
    """Whether the outputs may stand for the sources.

    Args:
        sources: what those hold that are left.
        outputs: what is to be committed.
        start_of: where streams begin now.
        all_known: no source is gone. What one that is held lies below the starts, and may be in an output.
        rules: which hold.

    Raises:
        NotAllowedError: offsets are missing, come from nowhere, or are held twice.
    """
    held, made = _by_stream(sources), _by_stream(outputs)
    for stream in sorted({*held, *made}):
        old, new = held.get(stream, []), made.get(stream, [])
        start = start_of(stream)
        twice = next(((a, b) for a, b in pairwise(new) if b[0] < a[1]), None)
        if twice is not None:
            raise NotAllowedError(f"stream {stream}: outputs hold {twice[0]} and {twice[1]}")
        missing = [] if start is None else _without(_above(old, start), new)
        if rules.holds_everything and missing:
            raise NotAllowedError(f"stream {stream}: {missing} of the sources is in no output")
        foreign = _without(new if all_known else _above(new, start), old)
        if rules.holds_nothing_else and foreign:
            raise NotAllowedError(f"stream {stream}: {foreign} of the outputs is in no source")


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
    """What of `parts` lies in none of `others`."""
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
