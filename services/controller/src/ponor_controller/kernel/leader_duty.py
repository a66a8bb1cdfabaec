"""Run a periodic duty while this controller leads.

A duty reads rows, proposes records that are due, and returns the time of its next step. It stores
nothing that a new leader needs: all input comes from rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from ponor.common.v1 import error_pb2
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock

from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.proposer import Proposer

Step: TypeAlias = Callable[[], float | None]
"""Performs one step without waiting. Returns the seconds until the next step; None: only when woken."""
PAUSE_S: Final = 0.02
"""Pause after a step, so that the next step handles all records committed during the pause."""
RETRY_S: Final = 0.5
"""Pause after a refused proposal: leadership ends or is being transferred, or the log has no room."""


class LeaderDuty:
    """Runs a step at the beginning of a term, when woken, and after the time that the last step returned."""

    def __init__(self, step: Step, proposer: Proposer, leading: Leading, clock: Clock) -> None:
        self._step = step
        self._proposer = proposer
        self._clock = clock
        self._woken = asyncio.Event()
        leading.on_change(self.wake)

    def wake(self) -> None:
        """Run the step soon, because its input changed."""
        self._woken.set()

    async def run(self) -> None:
        """Run steps while this controller leads, until cancelled."""
        while True:
            self._woken.clear()
            await self._proposer.room()
            wait_s = self._look() if self._proposer.leads else None
            await self._clock.sleep(PAUSE_S)
            await self._woken_within(wait_s)

    def _look(self) -> float | None:
        try:
            return self._step()
        except OperationError as error:
            if error.code not in (error_pb2.ERROR_CODE_NOT_LEADER, error_pb2.ERROR_CODE_OVERLOADED):
                raise
            return RETRY_S

    async def _woken_within(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
