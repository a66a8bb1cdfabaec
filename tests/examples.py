"""How many examples of a costly property a run draws."""

import os


def examples(count: int) -> int:
    """Return a third of `count` in `make test`, where the examples are the same in every run. `make explore`
    draws all of them, and others every night.
    """
    return count if "PONOR_EXPLORE" in os.environ else count // 3
