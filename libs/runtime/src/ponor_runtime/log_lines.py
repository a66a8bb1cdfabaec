"""Log handler that writes on its own thread, so that the loop never waits for the log file.

A write normally takes microseconds. But while the kernel writes back gigabytes, a journal transaction of the
file system can block a write for seconds, and a blocked loop misses heartbeats. The last lines of a failing
process (`lifecycle`) are written synchronously.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import deque
from typing import Final, TextIO

LINES_MAX: Final = 10_000
"""Lines waiting to be written; further lines are counted and dropped."""
FLUSH_SECONDS_MAX: Final = 1.0
"""How long an exiting process waits for its lines: a hung disk must not delay the exit."""
FLUSH_POLLS: Final = 10
"""The wait is counted in this many steps, so that a suspension of the machine uses up only one step."""
LAYOUT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LineWriter(logging.Handler):
    """Write lines to a stream in the order of their records; `emit` never waits.

    The calling thread formats each record, since its arguments may change afterwards.
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
        # Daemon: a hung disk must not delay the exit.
        threading.Thread(target=self._write_for_ever, name="log lines", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - report a wrong format string on stderr, as every handler does
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) >= self._lines_max:
                self._lost_count += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all queued lines are written, at most `FLUSH_SECONDS_MAX`."""
        with self._changed:
            for _ in range(FLUSH_POLLS):
                if self._changed.wait_for(self._is_written, FLUSH_SECONDS_MAX / FLUSH_POLLS):
                    return

    def _is_written(self) -> bool:
        return not self._lines and not self._is_writing

    def _write_for_ever(self) -> None:
        while True:
            lines = self._take()
            with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the disk is full
                self._stream.writelines(lines)
                self._stream.flush()
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _take(self) -> list[str]:
        """Take all waiting lines; append a line with the number of dropped ones."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines)
            lines = [f"{line}\n" for line in self._lines]
            if self._lost_count:
                lines.append(f"{self._lost_count} log lines dropped: the log file is too slow\n")
            self._lines.clear()
            self._lost_count = 0
            self._is_writing = True
            return lines


def log_to_stderr() -> None:
    """Send the log of this process to stderr, from INFO on."""
    logging.basicConfig(level=logging.INFO, handlers=[LineWriter(sys.stderr)])


def finish() -> None:
    """Flush the log before the process exits or prints its last lines."""
    for handler in logging.getLogger().handlers:
        handler.flush()
