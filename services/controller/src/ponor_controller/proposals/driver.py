"""The driver: takes operations from the lanes as fast as the log takes batches.

What lives here: one loop. It stops while too much is in flight, and it gives the event loop back often enough for heartbeats. Operations of one slice share
batches; each is sealed before the loop is given back.
"""

from __future__ import annotations

from ponor_runtime.clock import Clock

from ponor_controller.proposals.executor import Executor
from ponor_controller.proposals.lanes import Lanes
from ponor_controller.proposals.proposer import Proposer

SLICE_NS = 5_000_000
"""How long operations are executed before others on the event loop have their turn."""


async def drive(lanes: Lanes, executor: Executor, proposer: Proposer, clock: Clock) -> None:
    """Execute operations for ever."""
    slice_began_ns = clock.monotonic_ns()
    while True:
        pending = lanes.take()
        if pending is None:
            proposer.seal()
            await lanes.filled()
            await proposer.turn()
            slice_began_ns = clock.monotonic_ns()
            continue
        executor.execute(pending)
        is_over = clock.monotonic_ns() - slice_began_ns > SLICE_NS
        if is_over or not proposer.has_turn:
            proposer.seal()
            await clock.sleep(0)
            await proposer.turn()
            slice_began_ns = clock.monotonic_ns()
