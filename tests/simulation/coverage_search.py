"""Checks that seeds reach the states that they are meant to reach.

A change of the services changes what a seed does, so a rare state may leave the recorded seeds. Then further
seeds are searched. The state must occur within a bounded number of seeds, not in a certain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def check_reached(
    missing: Callable[[Sequence[T]], Sequence[str]], recorded: Iterable[T], further: Iterable[T]
) -> None:
    """Check that nothing is missing in the recorded runs and as many of the further ones as it takes.

    Args:
        missing: returns a line for each state that the runs have not reached.
        recorded: outcomes of the recorded seeds, which normally reach every state.
        further: outcomes of other seeds; an iterator that runs a seed when it is asked for the next one.
    """
    runs = list(recorded)
    for another in further:
        if not missing(runs):
            break
        runs.append(another)
    left = missing(runs)
    assert not left, f"not reached in {len(runs)} runs: {'; '.join(left)}"


def below(wanted: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """Return a line for each count that is below the wanted minimum."""
    return [
        f"{name}: {counts.get(name, 0)} of {minimum}"
        for name, minimum in wanted.items()
        if counts.get(name, 0) < minimum
    ]
