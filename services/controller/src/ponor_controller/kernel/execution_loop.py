"""The driver: takes operations from the lanes as fast as the log takes batches.

What lives here: one loop. It stops while too much is in flight, and it gives the event loop back often enough for heartbeats. Operations that wait together share
a batch, over a few slices if it takes them; it is sealed as soon as nothing waits.
"""

from __future__ import annotations

from ponor_runtime.clock import Clock

from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.proposer import Proposer

SLICE_NS = 10_000_000
"""How long operations are executed before others on the event loop have their turn."""
SLICES_MAX = 4
"""How many slices may share a batch. Were it one, a slow or busy machine would make small batches, each of which costs as much on its way as some 40 operations, and be busier still."""
HANDOVER_SECONDS = 0.01
"""How soon a batch is tried again that was gathered when leadership began to be handed over (which may come to nothing), or when the log had no room."""


async def drive(lanes: Lanes, executor: Executor, proposer: Proposer, clock: Clock) -> None:
    """Execute operations for ever."""
    slice_began_ns, slices = clock.monotonic_ns(), 1
    while True:
        pending = lanes.take()
        if pending is None:
            proposer.seal()
            if proposer.gathers:
                await clock.sleep(HANDOVER_SECONDS)
                continue
            proposer.settle()
            await lanes.filled()
            await proposer.turn()
            slice_began_ns, slices = clock.monotonic_ns(), 1
            continue
        executor.execute(pending)
        is_over = clock.monotonic_ns() - slice_began_ns > SLICE_NS
        if is_over or not proposer.has_turn:
            slices += 1
            if slices > SLICES_MAX or not proposer.has_turn:
                proposer.seal()
                slices = 1
            await clock.sleep(0)
            await proposer.turn()
            slice_began_ns = clock.monotonic_ns()
