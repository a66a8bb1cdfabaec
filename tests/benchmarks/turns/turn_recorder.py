"""Records the CPU time of an event loop's turns.

A turn is one iteration of the loop: all callbacks that were ready when it began. Its length is the
CPU time of the loop's thread (`time.thread_time_ns`), so other load of the machine does not
lengthen it. Scenarios call `start_recording` after their set-up and `stop_recording` after the
measured work.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Final

SERVING_THRESHOLDS: Final = (500, 50, 2_000)
"""Garbage collector threshold of a serving controller (`ponor_controller.__main__`)."""
STACK_FRAMES_MAX: Final = 8
SAMPLE_SECONDS: Final = 0.002


@dataclass
class Turns:
    """Results between `start_recording` and `stop_recording`.

    Attributes: count: number of turns. longest_ms: CPU time of the longest turn. above: number of
    turns above the bound. stack: stack of the longest turn above the bound, shortly after it passed
    the bound; empty if no turn did.
    """

    count: int = 0
    longest_ms: float = 0.0
    above: int = 0
    stack: str = ""


class TurnRecorder(asyncio.SelectorEventLoop):
    """An asyncio loop that measures its own turns. Production runs uvloop, which runs the same callbacks."""

    def __init__(self, bound_ms: float) -> None:
        super().__init__()
        self.bound_ms = bound_ms
        self.turns = Turns()
        self._recording = False
        self._began_ns: int | None = None
        self._stack = ""
        self._measured_thread = threading.get_ident()
        self._measured_clock = time.pthread_getcpuclockid(self._measured_thread)
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="turn-sampler", daemon=True)
        self._sampler.start()

    def start_recording(self) -> None:
        """Drop the results and record from the next turn on.

        Objects of the set-up are frozen first, as services freeze those of their start: otherwise a
        collection of all objects would count as a turn.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(*SERVING_THRESHOLDS)
        self.turns = Turns()
        self._recording = True
        self._began_ns = None  # the turn that calls this has done set-up work

    def stop_recording(self) -> Turns:
        """Stop recording; the present turn does not count."""
        self._recording = False
        self._began_ns = None
        return self.turns

    def close(self) -> None:
        self._done.set()
        super().close()

    def _run_once(self) -> None:
        self._stack = ""
        self._began_ns = time.thread_time_ns() if self._recording else None
        super()._run_once()  # type: ignore[misc]
        began_ns, self._began_ns = self._began_ns, None
        if began_ns is None:
            return
        took_ms = (time.thread_time_ns() - began_ns) / 1e6
        turns = self.turns
        turns.count += 1
        turns.above += took_ms > self.bound_ms
        if took_ms > turns.longest_ms:
            turns.longest_ms = took_ms
            turns.stack = self._stack

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            began_ns = self._began_ns
            if began_ns is None or self._stack:
                continue
            if (time.clock_gettime_ns(self._measured_clock) - began_ns) / 1e6 > self.bound_ms:
                frame = sys._current_frames().get(self._measured_thread)
                self._stack = "".join(traceback.format_stack(frame)[-STACK_FRAMES_MAX:])
