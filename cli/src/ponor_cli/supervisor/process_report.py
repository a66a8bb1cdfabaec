"""What `ponor up` says, above all of its processes: what each said itself, and how it ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

STARTUP_BYTES_MAX: Final = 16 * 1024


def say(line: str) -> None:
    """One line to the user, at once."""
    print(line, flush=True)


def startup_lines(log_path: Path, position: int) -> list[str]:
    """What a process logged from its launch until it served (such as how long its recovery took), without time and level."""
    with log_path.open("rb") as log:
        log.seek(position)
        text = log.read(STARTUP_BYTES_MAX).decode(errors="replace")
    return [line.partition(": ")[2] or line for line in text.splitlines()]


def how_it_ended(code: int | None) -> str:
    """The end of a sentence about a process."""
    if code is not None and code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def last_lines(text: str, count: int = 12) -> str:
    """The end of a log, indented."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-count:])


def waiting_line(title: str, waited_s: float, log_path: Path) -> str:
    """What to say of a process that has not served for so long: its last word, or where to look."""
    text = log_path.read_text(errors="replace").strip() if log_path.exists() else ""
    last = text.splitlines()[-1].partition(": ")[2] if text else "nothing yet"
    return f"{title} does not serve after {waited_s:.0f} s; its last word in {log_path}: {last}"
