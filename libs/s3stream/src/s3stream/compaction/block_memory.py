"""A memory mapping that consecutive compactions reuse, so that its pages are faulted in only once.

Allocating 64 MiB for each compaction costs as much CPU as reading that much data, because the
kernel faults in and zeroes every 4 KiB page.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
"""The advice to use huge pages, so that one fault maps 2 MiB; None if the system has no such advice."""


class BlockMemory:
    """Lends the memory to one compaction at a time. Its initial content is undefined.

    Args:
        bytes_min: minimum size of the mapping. Unused pages cost nothing.
    """

    def __init__(self, bytes_min: int = 1) -> None:
        self._bytes_min = bytes_min
        self._kept: memoryview | None = None

    @contextmanager
    def lent(self, size_bytes: int) -> Iterator[memoryview]:
        """Lend memory of this size. A second concurrent borrower gets a temporary mapping."""
        memory, self._kept = self._kept, None
        if memory is None or len(memory) < size_bytes:
            memory = None  # release the old mapping before creating a larger one
            memory = _mapped(max(size_bytes, self._bytes_min))
        try:
            yield memory[:size_bytes]
        finally:
            self._kept = memory


def _mapped(size_bytes: int) -> memoryview:
    mapping = mmap.mmap(-1, size_bytes)
    if _HUGE_PAGES is not None:
        try:
            mapping.madvise(_HUGE_PAGES)
        except OSError:  # the kernel does not support it
            return memoryview(mapping)
    return memoryview(mapping)
