"""How late a process is that does nothing but wait: what a machine owes to everybody, beside a figure about somebody's ticks.

Run as a program it ticks until its stdin ends, then prints the counts, one `BOUND COUNT` a line (us). A processor that the host takes away for a second is late ticks of everybody on it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

TICK_SECONDS: Final = 0.05


class BareTicks:
    """The program, while it runs."""

    def __init__(self, bounds_us: Sequence[int]) -> None:
        command = [sys.executable, "-m", __name__, *map(str, bounds_us)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> dict[int, int]:
        """Ticks that were later than each bound."""
        printed, _ = self._process.communicate(timeout=30)
        lines = (line.split() for line in printed.splitlines())
        return {int(bound): int(count) for bound, count in lines}


async def _tick(bounds_us: Sequence[int], ended: threading.Event) -> Counter[int]:
    late: Counter[int] = Counter()
    while not ended.is_set():
        due_ns = time.monotonic_ns() + int(TICK_SECONDS * 1e9)
        await asyncio.sleep(TICK_SECONDS)
        late_us = (time.monotonic_ns() - due_ns) // 1000
        late.update(bound for bound in bounds_us if late_us > bound)
    return late


def main() -> None:
    """See the module's docstring."""
    bounds_us = [int(word) for word in sys.argv[1:]]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    late = asyncio.run(_tick(bounds_us, ended))
    for bound in bounds_us:
        print(bound, late[bound])


if __name__ == "__main__":
    main()
