"""The rot trial: at the end of a run with one controller, one stored bit of it flips.

What lives here: what must come of it. There is no second copy, so nothing can be repaired: the controller refuses to start, or it starts and everything that was committed is there. It was stopped in
order before, so that its log ends with a proof of what was synced: then even the last entry's loss is noticed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from ponor_metadata import snapshot

from ponor_simulation.faults.rot import rot
from ponor_simulation.invariants.registry import LIVENESS, Checks

if TYPE_CHECKING:
    from ponor_simulation.run import ClusterRun

ANSWER_S_MAX: Final = 20.0


async def try_rot(run: ClusterRun) -> None:
    """Stop the controller, flip a bit, start it, and look.

    Raises:
        InvariantBrokenError: it serves less than was committed.
    """
    cluster, (name,) = run.cluster, run.cluster.controllers
    process, checks = cluster.processes[name], Checks(cluster.coverage.checks)
    cluster.stop(name)
    await run.wait(LIVENESS, f"{name} has stopped", lambda: not process.running, s_max=ANSWER_S_MAX)
    before = cluster.watch.controllers[name].image.index
    place = rot(process.disk, random.Random(f"rot {run.plan.seed}").randrange(1 << 40))
    assert place is not None, "a controller keeps something"
    cluster.rotten[name] = place
    await run.wait(
        LIVENESS,
        f"{name} serves or refuses after {place}",
        lambda: name in run.supervisor.refused or cluster.has_leader,
        s_max=ANSWER_S_MAX,
    )
    if name in run.supervisor.refused:
        return
    cluster.coverage.states["starts on a rotten disk that lost nothing"] += 1
    image, observer = cluster.watch.controllers[name].image, run.observer
    assert observer is not None
    checks.require(3, image.index >= before, f"{name} has {image.index} of {before}: {place}")
    # The observer holds what was there before; a controller that lost some of it would send it another history, or let it wait for ever.
    await run.wait(
        LIVENESS, "the observer follows", lambda: observer.image.index == image.index, s_max=ANSWER_S_MAX
    )
    same = snapshot.encode(observer.image) == snapshot.encode(image)
    checks.require(10, same, f"{name} has another state at {image.index}: {place}")
