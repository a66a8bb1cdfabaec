"""Memory that consecutive compactions share, so that its pages are faulted in once.

One mapping is lent to one compaction at a time. Returning 64 MiB to the system after each compaction costs as much CPU
as reading them, because every page is a fault and 4 KiB of zeros.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
"""Where the system has them: one fault for 2 MiB."""


class BlockMemory:
    """Lends memory; what it holds at first is anything.

    Args:
        bytes_min: as much is mapped at least. What is never used of it costs nothing.
    """

    def __init__(self, bytes_min: int = 1) -> None:
        self._bytes_min = bytes_min
        self._kept: memoryview | None = None

    @contextmanager
    def lent(self, size_bytes: int) -> Iterator[memoryview]:
        """Memory of this size; a second borrower at a time gets memory of its own."""
        memory, self._kept = self._kept, None
        if memory is None or len(memory) < size_bytes:
            memory = None  # gone before there is more
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
        except OSError:  # a kernel without
            return memoryview(mapping)
    return memoryview(mapping)
