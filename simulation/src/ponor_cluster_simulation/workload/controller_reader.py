"""Readers that stay with the controller they know: each asks one controller for linearizable reads, over one connection for as long as that lasts, and does not mind silence.

What lives here: the question, and the history of all answers. Everybody else leaves a controller that stood still or is cut off, so nobody would ask it what it does not know any more; these do, in the
moment in which it goes on. An answer is an index, and indexes only grow, so there is one order of all answers, that of the indexes: it respects who came before whom if and only if no answer lies below
anything that was told before its question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_rpc.methods import QUORUM
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.invariants.registry import Checks

PATIENCE_S: Final = 8.0
"""Longer than any controller stands still and is parted; half of a connection may be dead."""
PAUSE_S: Final = (0.05, 0.2)


@dataclass(slots=True)
class IndexHistory:
    """What all loyal readers of a run were told.

    Attributes:
        shown_index: up to where somebody who follows the metadata was shown them by now.
        told_index: the highest answer so far.
    """

    shown_index: Callable[[], int]
    told_index: int = 0

    @property
    def known_index(self) -> int:
        """No question that is asked now may be answered with less."""
        return max(self.shown_index(), self.told_index)


class ControllerReader:
    """See the module's docstring. Its process never dies.

    Attributes:
        reads: how many answers were compared.
    """

    def __init__(self, name: str, address: str, history: IndexHistory, checks: Checks) -> None:
        self.name = name
        self._address = address
        self._history = history
        self._checks = checks
        self.reads = 0
        self.stop = False

    async def run(self, runtime: Runtime) -> None:
        """Until stopped."""
        while not self.stop:
            await runtime.clock.sleep(runtime.randomness.uniform(*PAUSE_S))
            try:
                connection = await runtime.network.connect(self._address, QUORUM)
            except ConnectionClosedError:
                continue
            try:
                while not self.stop:
                    await self._read(connection)
                    await runtime.clock.sleep(runtime.randomness.uniform(*PAUSE_S))
            except (ConnectionClosedError, TimeoutError):
                continue
            finally:
                await connection.close()

    async def _read(self, connection: Connection) -> None:
        known = self._history.known_index
        async with asyncio.timeout(PATIENCE_S):
            await connection.send(wire.QuorumRequest(read_index=wire.ReadIndex()).SerializeToString())
            answer = wire.QuorumResponse.FromString(await connection.receive())
        if answer.WhichOneof("outcome") != "done":
            return
        index = answer.done.index
        self.reads += 1
        self._checks.require(
            11,
            index >= known,
            f"{self.name} was told by {self._address} to read at {index}; {known} was known before it asked",
        )
        self._history.told_index = max(self._history.told_index, index)
