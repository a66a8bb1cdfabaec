"""Lifecycle of a service process: event loop, signals, exit of the parent process, fail-stop.

Exit codes: 0 after a requested stop, 1 for an error that an operator can fix (one line names it), 70 for a
fail-stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, TypeAlias

from ponor_runtime import log_lines
from ponor_runtime.health import Health
from ponor_runtime.network import Network
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import SettingError
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.thread_times import OwnThreadTimes, ThreadTimes

PARENT_FD_VARIABLE: Final = "PONOR_PARENT_FD"
"""Read end of a pipe whose write end only the parent holds: end of file means that the parent exited."""
EXIT_REFUSED: Final = 1
EXIT_FAIL_STOP: Final = 70
STOP_SECONDS_MAX: Final = 4.0
"""After this time since a stop request the process exits even if the service has not closed, unless the
service postpones the exit. Acknowledged data is durable."""
ORPHAN_SECONDS_MAX: Final = 1.0
"""The same limit after the parent exited. The service cannot postpone it, because the next process needs the
ports and the directory."""
END_POLLS: Final = 8
"""Both times are counted in this many steps, so that a suspension of the process uses up only one step."""

ServiceMain: TypeAlias = Callable[[Runtime, asyncio.Event], Awaitable[None]]
"""Serves until the event is set, then closes everything in order and returns."""

NetworkOf: TypeAlias = Callable[[Health], Network]


class StartRefusedError(Exception):
    """A service cannot start or continue until an operator changes something; the message says what."""


def run_service(
    main: ServiceMain,
    *,
    name: str,
    network: NetworkOf,
    remediable: tuple[type[BaseException], ...] = (),
) -> int:
    """Run a service in this process until a stop request; return the exit code.

    Args:
        main: the service.
        name: prefix of its lines on stderr.
        network: builds the network port, which serves the health of the process; called on the running loop.
        remediable: further errors that an operator can fix, besides `StartRefusedError`, `SettingError` and
            `OSError`; the process prints only their message.
    """
    import uvloop

    refused: tuple[type[BaseException], ...] = (StartRefusedError, SettingError, OSError, *remediable)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(main, name, network))
    except refused as error:
        log_lines.finish()
        _say(f"{name}: {error}")
        return EXIT_REFUSED
    except Exception as error:  # noqa: BLE001 - last resort: print the whole traceback
        log_lines.finish()
        traceback.print_exception(error)
        _say(f"{name}: stopped by an unexpected {type(error).__name__}: {error}")
        return EXIT_FAIL_STOP
    return 0


def end_process(code: int) -> NoReturn:
    """End the process without shutting the interpreter down. Call after everything is closed.

    A thread of a compiled library (such as the object store's Rust threads) may be about to call into Python.
    An interpreter that is shutting down unwinds such a thread, and Rust then aborts the process with SIGABRT
    (https://github.com/python/cpython/issues/87135).
    """
    log_lines.finish()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by the parent
        with contextlib.suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(code)


async def _serve(main: ServiceMain, name: str, network: NetworkOf) -> None:
    loop = asyncio.get_running_loop()
    fail_stop = functools.partial(_fail_stop, name)
    loop.set_exception_handler(functools.partial(_on_loop_error, fail_stop))
    stop = asyncio.Event()
    process, health, clock = _ServiceProcess(loop, name), Health(), SystemClock()
    begin_stop = functools.partial(_begin_stop, process, health, stop)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, begin_stop)
    watched = _watch_parent(loop, name, functools.partial(_begin_hurried_stop, process, health, stop))
    telemetry = Telemetry()
    tasks = BackgroundTasks(fail_stop)
    tasks.spawn(health.watch(clock), "health")
    stop_export = _export_telemetry(telemetry, name)
    try:
        runtime = Runtime(
            clock, SystemRandomness(), SystemDisk(), network(health), telemetry, fail_stop, process, health
        )
        await main(runtime, stop)
    finally:
        await tasks.close()
        stop_export()
        if watched is not None:
            loop.remove_reader(watched)


def _export_telemetry(telemetry: Telemetry, name: str) -> Callable[[], None]:
    """Export traces and metrics by OTLP if the environment names a collector.

    The returned function flushes and stops.
    """
    from ponor_runtime.otlp_environment import is_asked_for

    if not is_asked_for(os.environ):
        return lambda: None
    from ponor_runtime.telemetry_otlp import export_from_environment

    return export_from_environment(telemetry, name, os.environ)


class _ServiceProcess:
    """`Process` of a service; ends the process if the stop takes too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._own_thread = OwnThreadTimes()
        self._end: asyncio.TimerHandle | None = None
        self._is_forced = False

    def cpu_ns(self) -> int:
        return time.process_time_ns()

    def loop_times(self) -> ThreadTimes:
        return self._own_thread.read()

    @property
    def is_forced(self) -> bool:
        return self._is_forced

    def postpone_end(self, seconds: float) -> None:
        if self._end is not None and not self._is_forced:
            self.end_in(seconds)

    def hurry(self) -> None:
        """End the process soon; ignore later postponements."""
        self._is_forced = True
        self.end_in(ORPHAN_SECONDS_MAX)

    def end_in(self, seconds: float) -> None:
        """End the process after `seconds`, unless postponed."""
        if self._end is not None:
            self._end.cancel()
        self._look_again(seconds, END_POLLS)

    def _look_again(self, seconds: float, looks_left: int) -> None:
        if looks_left == 0:
            self._give_up(seconds)
        self._end = self._loop.call_later(seconds / END_POLLS, self._look_again, seconds, looks_left - 1)

    def _give_up(self, seconds: float) -> NoReturn:
        log_lines.finish()
        _say(
            f"{self._name}: shutdown not complete {seconds:g} s after the stop request;"
            " exiting; the next start recovers"
        )
        os._exit(EXIT_REFUSED)


def _begin_stop(process: _ServiceProcess, health: Health, stop: asyncio.Event) -> None:
    health.stop()
    if not stop.is_set():
        stop.set()
        process.end_in(STOP_SECONDS_MAX)


def _begin_hurried_stop(process: _ServiceProcess, health: Health, stop: asyncio.Event) -> None:
    health.stop()
    stop.set()
    process.hurry()


def _watch_parent(loop: asyncio.AbstractEventLoop, name: str, begin_stop: Callable[[], None]) -> int | None:
    text = os.environ.get(PARENT_FD_VARIABLE)
    if text is None:
        return None
    try:
        descriptor = int(text)
        os.set_blocking(descriptor, False)
        os.set_inheritable(descriptor, False)
    except (ValueError, OSError) as error:
        raise StartRefusedError(f"{PARENT_FD_VARIABLE}={text!r} is not an open pipe: {error}") from error

    def readable() -> None:
        try:
            if os.read(descriptor, 1024):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        loop.remove_reader(descriptor)
        _say(f"{name}: parent process exited; stopping")
        begin_stop()

    loop.add_reader(descriptor, readable)
    return descriptor


def _on_loop_error(
    fail_stop: Callable[[str, BaseException], NoReturn], _: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Fail-stop for an error that no task handled.

    Only log three harmless kinds: an error that names a transport (it affects one connection, which the loop
    has closed), a warning without an exception, and BlockingIOError of gRPC's poller, which read an empty
    wake-up pipe and polls again.
    """
    error = context.get("exception")
    what = str(context.get("message", "the event loop"))
    if "transport" in context or not isinstance(error, Exception) or isinstance(error, BlockingIOError):
        _say(f"{what}: {type(error).__name__}: {error}" if error is not None else what)
        return
    fail_stop(what, error)


def _fail_stop(name: str, what: str, error: BaseException) -> NoReturn:
    """End the process.

    The flush of the log blocks the loop for at most `FLUSH_SECONDS_MAX`. That is intended: no handler may run
    on corrupt state.
    """
    log_lines.finish()
    traceback.print_exception(error)
    _say(f"{name}: FAIL-STOP: {what}: {type(error).__name__}: {error}")
    os._exit(EXIT_FAIL_STOP)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
