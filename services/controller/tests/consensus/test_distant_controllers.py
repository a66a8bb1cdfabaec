"""Controllers that are far from each other: requests that need the answer of a majority succeed."""

from __future__ import annotations

import asyncio

import pytest
from ponor_controller.consensus.linearizable_reads import ATTEMPT_SECONDS
from ponor_simulation.links import DelayLaw, Links
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_world import NAMES, Clients, QuorumWorld

FAR_S = 0.8 * ATTEMPT_SECONDS
"""One way: an answer arrives after the next request was sent."""


@pytest.mark.parametrize("seed", range(3))
def test_a_session_is_resumed_and_metadata_are_read(seed: int) -> None:
    """Before, a late answer was dropped: no node could connect again, and no image counted as current."""
    world = QuorumWorld(seed)
    done: list[str] = []

    async def program(clients: Clients) -> None:
        done.append("registered")
        await wait_until(lambda: "far" in done)
        await clients.session.register_again(())
        done.append("resumed")
        await clients.subscription.wait_current(5_000)
        done.append("read")

    async def story() -> None:
        node = world.node("b0", program)
        for process in (*world.controllers.values(), node):
            process.start()
        await wait_until(lambda: "registered" in done)
        far = DelayLaw((FAR_S, FAR_S), tail_share=0.0)
        pairs = ((one, other) for one in NAMES for other in NAMES if one != other)
        world.network.change_links(Links(delays=dict.fromkeys(pairs, far)))
        await asyncio.sleep(1)
        done.append("far")
        await wait_until(lambda: "read" in done)

    world.simulation.run(story())
