"""A duty of the leader: something that whoever leads sees to, without being asked.

What lives here: when such a duty looks at the cluster. What it does then is its own: a step reads the view, proposes what is due and says when the next thing will be. It
remembers nothing that matters, for all that it goes by is in rows: whoever leads next goes on where the last one stopped.
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
"""Looks once, without waiting. Returns the seconds until the next look; None: only when something happens."""
PAUSE_S: Final = 0.02
"""Between two steps: what is committed meanwhile is looked at once."""
HANDING_OVER_S: Final = 0.5
"""A leader that hands over proposes nothing, nor does one whose log has no room; it goes on later."""


class LeaderDuty:
    """Runs a step at the beginning of every term, whenever it is woken, and when the time comes that the last step named."""

    def __init__(self, step: Step, proposer: Proposer, leading: Leading, clock: Clock) -> None:
        self._step = step
        self._proposer = proposer
        self._clock = clock
        self._woken = asyncio.Event()
        leading.on_change(self.wake)

    def wake(self) -> None:
        """Something happened that the step goes by."""
        self._woken.set()

    async def run(self) -> None:
        """See to it for ever, while this controller leads."""
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
            return HANDING_OVER_S

    async def _woken_within(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
