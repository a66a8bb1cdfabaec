"""Bound the number and the bytes of the committed entries that are delivered in one step.

An entry may contain one record or a megabyte of records; a record may change one row or a thousand.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ponor_raft.entry import Entry

DELIVERED_AT_ONCE: Final = 4
"""Entries in one step. A small entry may delete a topic of a thousand partitions, which takes 5 to 20 ms."""
DELIVERED_BYTES: Final = 16 * 1024
"""Bytes in one step; a larger entry forms its own step. 16 KiB of records can create up to 300 partitions;
applying them takes 3 to 5 ms.
"""


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
