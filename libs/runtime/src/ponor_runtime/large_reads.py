"""Large reads of a disk that somebody else is waiting for: in pieces, one at a time.

What lives here: the manners of whoever reads megabytes from the device that also takes the synced writes of a log. A read of 2 MiB, and the
kernel's own read-ahead behind it, keep a device busy for milliseconds, and a write that comes meanwhile is served behind them. In pieces of 256 KiB, of all
readers together one at a time and none ahead, a write finds at most one piece before it (docs/decisions/0011-reading.md has the figures and the price).

The pieces fill the page cache, through memory that is used again and again; then one call copies everything from there, without Python's lock, into the
bytes that the reader gets.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

PIECE_BYTES: Final = 256 * 1024
"""As long on the device as a handful of small writes."""


class LargeReads:
    """Shared by all files of one disk; used by several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._scratch = bytearray(PIECE_BYTES)

    def prepare(self, descriptor: int, position: int, length: int) -> None:
        """Bring a range into the page cache, piece by piece, each when it is this reader's turn.

        Raises:
            OSError: the device failed.
        """
        # Or the kernel would read far beyond what was asked for. Some file systems do not know the advice.
        with suppress(OSError):
            os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_RANDOM)
        end = position + length
        while position < end:
            with self._turn, memoryview(self._scratch) as scratch:
                read = os.preadv(descriptor, [scratch[: min(PIECE_BYTES, end - position)]], position)
            if not read:
                return  # the file ends here
            position += read
