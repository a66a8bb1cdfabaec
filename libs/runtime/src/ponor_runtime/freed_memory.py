"""Settings of glibc's allocator that reuse freed memory instead of returning it to the kernel.

By default glibc maps memory for each block above 128 KiB and unmaps it when the block is freed, or it trims
one of several heaps. Every new cache block, read or response then causes page faults, and the kernel zeroes
pages: 345 µs for a block of 512 KiB, whereas a copy into reused memory takes about 20 µs
(docs/design/reading-and-caches.md#cold-readers-beside-a-producer). Use these settings in services that bound
their memory by budgets and often allocate large buffers.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameter names of malloc.h."""

MAPPED_BYTES_MIN: Final = 8 << 20
"""glibc maps and unmaps only larger blocks, which are rare."""
KEPT_BYTES_MAX: Final = 64 << 20
"""Free memory beyond this at the end of the heap returns to the kernel."""


def use_freed_memory_again() -> bool:
    """Set the allocator parameters; call before the process starts threads. Return False if unsupported."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    # Use one heap, because one thread allocates a buffer and another frees it. With a heap per thread, memory
    # freed into one heap would not be available to the other thread.
    return all(
        mallopt(ctypes.c_int(name), ctypes.c_int(value))
        for name, value in (
            (_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
            (_TRIM_THRESHOLD, KEPT_BYTES_MAX),
            (_ARENA_MAX, 1),
        )
    )
