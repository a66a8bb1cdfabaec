"""A small service for test_lifecycle.py, run as a program: prints "serving", then does what its argument
says."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from ponor_runtime import lifecycle, log_lines
from ponor_runtime.lifecycle import StartRefusedError, end_process, run_service
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

CLOSES_AT_ONCE = {"serve", "talk"}


class NoNetwork:
    """A service without peers."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the network was used")


async def main(runtime: Runtime, stop: asyncio.Event) -> None:
    wish = sys.argv[1]
    if wish in CLOSES_AT_ONCE:
        # Do not end the process by deadline on a slow machine.
        lifecycle.STOP_SECONDS_MAX = lifecycle.ORPHAN_SECONDS_MAX = 600.0  # type: ignore[misc]
    if wish == "refuse":
        raise StartRefusedError("the directory x is in use: stop the other process")
    if wish == "bug":
        raise KeyError("bug")
    print("serving", flush=True)
    if wish == "task":
        tasks = BackgroundTasks(runtime.fail_stop)

        async def fail() -> None:
            raise OSError("the disk is gone")

        tasks.spawn(fail(), "journal writer")
    if wish == "callback":
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
    if wish == "talk":
        for number in range(3 * log_lines.LINES_MAX):
            logging.getLogger("tiny").info("line %d", number)
        print("said", flush=True)
    await stop.wait()
    if wish == "long":
        # Longer in total than the default deadline; each wait alone is shorter.
        for _ in range(2):
            runtime.process.postpone_end(600.0)
            await runtime.clock.sleep(2.5)
    if wish == "hang":
        await asyncio.Event().wait()
    print("closed", flush=True)


if __name__ == "__main__":
    log_lines.log_to_stderr()
    end_process(run_service(main, name="tiny", network=lambda _: NoNetwork()))
