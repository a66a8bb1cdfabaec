"""Bound the committed entries that are delivered in one step, by number and by bytes.

64 entries may have one record each or a megabyte each, and 64 of the latter took as many milliseconds.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ponor_raft.entry import Entry

DELIVERED_AT_ONCE: Final = 64
"""Entries in one step."""
DELIVERED_BYTES: Final = 16 * 1024
"""Bytes in one step, unless its only entry has more: up to 300 new partitions, three to five milliseconds."""


def next_delivery(committed: deque[Entry]) -> list[Entry]:
    """Remove and return the committed entries of the next step, at least one."""
    entries = [committed.popleft()]
    size_bytes = len(entries[0].data)
    while committed and len(entries) < DELIVERED_AT_ONCE:
        size_bytes += len(committed[0].data)
        if size_bytes > DELIVERED_BYTES:
            break
        entries.append(committed.popleft())
    return entries
