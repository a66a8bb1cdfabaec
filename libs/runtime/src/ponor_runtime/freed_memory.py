"""What becomes of memory that a process has freed: it is used again instead of being given back to the kernel and asked for anew.

What lives here: three settings of glibc's allocator. By default, blocks of a cache, reads and answers above 128 KiB each are mapped and unmapped, or
cut from one of eight heaps and trimmed away, and every page of the next one is a fault and 4 KiB of zeros: 345 µs for a block of 512 KiB where copying into memory
that stays takes about 20 µs (docs/design/reading-and-caches.md#cold-readers-beside-a-producer). It is for services whose memory is bounded by budgets and which read and forget all day.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Names of malloc.h."""

MAPPED_BYTES_MIN: Final = 8 << 20
"""Larger ones are mapped, and given back when they are freed: frames of a size that is rare."""
KEPT_BYTES_MAX: Final = 64 << 20
"""More free memory than this at the end of the heap is given back."""


def use_freed_memory_again() -> bool:
    """Set the allocator of this process, before it has threads; False where it has no such settings."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    # One heap: what one thread reads another frees, and with a heap for each thread either would keep what the other lacks.
    return all(
        mallopt(ctypes.c_int(name), ctypes.c_int(value))
        for name, value in (
            (_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
            (_TRIM_THRESHOLD, KEPT_BYTES_MAX),
            (_ARENA_MAX, 1),
        )
    )
