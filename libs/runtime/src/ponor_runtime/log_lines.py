"""Log lines of a service: written by a thread of their own, so that the loop never waits for the file that they go to.

A line costs microseconds until the file system makes its writer wait for a transaction of the journal: for as long as somebody's gigabytes are being written back, which on a busy disk is
seconds. A loop that waits so long misses heartbeats. Not here: what is logged, and the last words of a process that fails (`lifecycle`), which nobody may skip.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import deque
from typing import Final, TextIO

LINES_MAX: Final = 10_000
"""Lines that wait to be written; what comes then is counted, not kept."""
FLUSH_SECONDS_MAX: Final = 1.0
"""How long a process that ends waits for its lines: a disk that hangs must not keep it."""
FLUSH_LOOKS: Final = 10
"""In so many pieces: a machine that stands still for seconds uses up one of them, not all before the writer has had its turn."""
LAYOUT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LineWriter(logging.Handler):
    """Lines go to a stream in the order of their records; `emit` never waits for it.

    Each record is made a line by whoever logs, since what it refers to may change afterwards.
    """

    def __init__(self, stream: TextIO, *, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(LAYOUT))
        self._stream = stream
        self._lines: deque[str] = deque()
        self._lines_max = lines_max
        self._lost_count = 0
        self._changed = threading.Condition()
        self._is_writing = False
        # A daemon: see FLUSH_SECONDS_MAX.
        threading.Thread(target=self._write_for_ever, name="log lines", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong format string is a line on stderr, as with every handler
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) >= self._lines_max:
                self._lost_count += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything queued is written, `FLUSH_SECONDS_MAX` at most."""
        with self._changed:
            for _ in range(FLUSH_LOOKS):
                if self._changed.wait_for(self._is_written, FLUSH_SECONDS_MAX / FLUSH_LOOKS):
                    return

    def _is_written(self) -> bool:
        return not self._lines and not self._is_writing

    def _write_for_ever(self) -> None:
        while True:
            lines = self._take()
            with contextlib.suppress(OSError, ValueError):  # whoever read it is gone, or the disk is full
                self._stream.writelines(lines)
                self._stream.flush()
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _take(self) -> list[str]:
        """All that wait, and how many were lost behind them."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines)
            lines = [f"{line}\n" for line in self._lines]
            if self._lost_count:
                lines.append(f"{self._lost_count} lines were lost: the log's file is too slow for them\n")
            self._lines.clear()
            self._lost_count = 0
            self._is_writing = True
            return lines


def log_to_stderr() -> None:
    """Send the log of this process to its stderr, from INFO on."""
    logging.basicConfig(level=logging.INFO, handlers=[LineWriter(sys.stderr)])


def finish() -> None:
    """Have what was logged written before the process ends or says its last words."""
    for handler in logging.getLogger().handlers:
        handler.flush()
