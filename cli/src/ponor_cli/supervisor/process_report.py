"""Lines that `ponor up` prints about its processes: their start, their log, their exit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

STARTUP_BYTES_MAX: Final = 16 * 1024


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def startup_lines(log_path: Path, position: int) -> list[str]:
    """Return what a process logged during its start, such as its recovery, without time and level."""
    with log_path.open("rb") as log:
        log.seek(position)
        text = log.read(STARTUP_BYTES_MAX).decode(errors="replace")
    return [line.partition(": ")[2] or line for line in text.splitlines()]


def how_it_ended(code: int | None) -> str:
    """Describe an exit code, for a sentence about the process."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def last_lines(text: str, count: int = 12) -> str:
    """Return the last lines of a log, indented."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-count:])


def waiting_line(title: str, waited_s: float, log_path: Path) -> str:
    """Return the line about a process that does not serve yet, with the last line of its log."""
    text = log_path.read_text(errors="replace").strip() if log_path.exists() else ""
    last = text.splitlines()[-1].partition(": ")[2] if text else "empty"
    return f"{title} does not serve after {waited_s:.0f} s; last line of {log_path}: {last}"
