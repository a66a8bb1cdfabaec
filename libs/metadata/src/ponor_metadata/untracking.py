"""Which containers of the image the garbage collector does not look at.

What lives here: the one way to take a container out of its sight, and when that is right. A collection of the second generation walks over every item of every
list that came since the process began to serve: 70 to 130 ms for a million keys, in one step of the event loop (docs/design/time-and-turns.md#garbage-collection). Lists of
a table's keys and rows hold numbers, strings, bytes and tuples of such, so no cycle goes through them, and walking over them finds nothing. They
are freed by their reference counts like everything else.
"""

from __future__ import annotations

try:
    from ponor_metadata.untracking_native import untrack
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed

    def untrack(container: object) -> None:
        """Without compiled code the collector goes on looking."""


__all__ = ["untrack"]
