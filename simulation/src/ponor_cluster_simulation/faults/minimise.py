"""Delta debugging: the smallest part of a failing schedule that still fails.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Fails = Callable[[Sequence[int]], bool]


def minimise(numbers: Sequence[int], fails: Fails, *, tries_max: int) -> tuple[int, ...]:
    """Return a part of `numbers` that fails. No single number can be left out, unless the tries ran
    out.

    Args:
        numbers: the whole schedule, which fails.
        fails: runs a part and returns whether it fails.
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
