"""Minimising: the smallest part of a failing schedule that still fails.

What lives here: delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) over numbers, pure: how a part is tried is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Fails = Callable[[Sequence[int]], bool]


def minimise(numbers: Sequence[int], fails: Fails, *, tries_max: int) -> tuple[int, ...]:
    """A part of `numbers` that fails, and of which, unless the tries ran out, no single one can be left out.

    Args:
        numbers: all of it, known to fail.
        fails: runs a part.
        tries_max: bound of the calls of `fails`.
    """
    left = tuple(numbers)
    pieces = 2
    tries = 0
    while left and tries < tries_max:
        size = max(len(left) // pieces, 1)
        for begin in range(0, len(left), size):
            rest = left[:begin] + left[begin + size :]
            tries += 1
            if fails(rest):
                left = rest
                pieces = max(pieces - 1, 2)
                break
            if tries >= tries_max:
                break
        else:
            if size == 1:
                break
            pieces = min(pieces * 2, len(left))
    return left
