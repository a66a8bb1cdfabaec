"""Readers that stay with one controller: each makes linearizable reads over one connection.

Other clients leave a paused or disconnected controller and would not observe its answers after it resumes. An
answer is an index, and indexes only grow. The history is therefore linearizable if and only if no answer is
below an index that was known before its request.
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
"""Longer than a pause plus a partition of a controller, but bounded: one direction of a connection may be
dead.
"""
PAUSE_S: Final = (0.05, 0.2)


@dataclass(slots=True)
class IndexHistory:
    """The answers to all controller readers of a run.

    Attributes:
        shown_index: the newest index that the run's observer has received.
        told_index: the highest answer.
    """

    shown_index: Callable[[], int]
    told_index: int = 0

    @property
    def known_index(self) -> int:
        """The lower bound of the answer to any request from now on."""
        return max(self.shown_index(), self.told_index)


class ControllerReader:
    """A reader of one controller. Its process never crashes.

    Attributes:
        reads: number of compared answers.
    """

    def __init__(self, name: str, address: str, history: IndexHistory, checks: Checks) -> None:
        self.name = name
        self._address = address
        self._history = history
        self._checks = checks
        self.reads = 0
        self.stop = False

    async def run(self, runtime: Runtime) -> None:
        """Read until stopped."""
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
            f"{self.name} received index {index} from {self._address}, but {known} was known before"
            " the request",
        )
        self._history.told_index = max(self._history.told_index, index)
