"""The rot check: at the end of a run with one controller, one stored bit of it flips.

There is no second copy, so nothing can be repaired. The controller must refuse to start, or start with
everything that was committed. It is stopped in order first: its log then ends with a proof of what was synced,
and even a damaged last entry is detected.
"""

from __future__ import annotations

import random
from typing import Final

from ponor_metadata.image import snapshot

from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.run_world import RunWorld

ANSWER_S_MAX: Final = 20.0


async def check_rot(world: RunWorld) -> None:
    """Stop the controller, flip a bit, start it, and compare its state.

    Raises:
        InvariantBrokenError: the controller serves less than was committed.
    """
    cluster, (name,) = world.cluster, world.cluster.controllers
    process = cluster.processes[name]
    cluster.stop(name)
    await world.wait(LIVENESS, f"{name} has stopped", lambda: not process.running, s_max=ANSWER_S_MAX)
    before = cluster.watch.controllers[name].image.index
    place = process.disk.rot(random.Random(f"rot {world.plan.seed}").randrange(1 << 40))
    assert place is not None, "a controller stores something"
    cluster.rotten[name] = place
    await world.wait(
        LIVENESS,
        f"{name} serves or refuses after {place}",
        lambda: name in world.supervisor.refused or cluster.has_leader,
        s_max=ANSWER_S_MAX,
    )
    if name in world.supervisor.refused:
        return
    cluster.coverage.states["starts on a rotten disk that lost nothing"] += 1
    image, observer = cluster.watch.controllers[name].image, world.observer
    assert observer is not None
    world.checks.require(3, image.index >= before, f"{name} has {image.index} of {before}: {place}")
    # The observer has the image from before. A controller that lost a part of it would send another history, or
    # nothing at all.
    await world.wait(
        LIVENESS, "the observer follows", lambda: observer.image.index == image.index, s_max=ANSWER_S_MAX
    )
    same = snapshot.encode(observer.image) == snapshot.encode(image)
    world.checks.require(10, same, f"{name} has another state at {image.index}: {place}")
