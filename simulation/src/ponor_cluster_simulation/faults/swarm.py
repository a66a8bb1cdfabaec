"""Swarm testing: a seed selects kinds of faults, and then the time of each fault.

Each seed omits about half of the kinds (Groce et al., "Swarm Testing", 2012): a store that is
always down would hide the effects of a pause. The whole schedule is drawn before the run begins; no
event of a run affects it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from ponor_cluster_simulation.faults.fault import (
    ALL_MACHINES,
    LEADER,
    OPENINGS,
    OPENINGS_IN_BUCKETS,
    OPENINGS_OF_COMPACTORS,
    RECOVERER,
    SOURCE,
    STEPS,
    TARGET,
    Fault,
    FaultKind,
)

KINDS_SHARE: Final = 0.5
FAULTS_BOUNDS: Final = (5, 14)
SAFETY_S_BOUNDS: Final = (6.0, 14.0)
AFTER_PAUSE_S: Final = 4.0
"""Time that a run continues after a long pause, to check the resumed process."""

CLOCK_JUMPS_MS: Final = (-1_500_000, -5_000, 5_000, 1_500_000)
"""Two jumps at once stay below one hour, the maximum by which a timestamp may be ahead of the broker's clock
(message.timestamp.after.max.ms).

A broker rightly refuses timestamps above this maximum.
"""


@dataclass(frozen=True, slots=True)
class Machines:
    """Possible targets of faults.

    Attributes:
        controllers, brokers, gcs, compactors: process names of the services.
        clients: processes whose links may fail.
        has_bucket: a bucket stores objects and may fail.
        takes_over: a broker recovers the log of another one.
        has_peer_links: links between brokers may fail.
    """

    controllers: tuple[str, ...]
    brokers: tuple[str, ...]
    gcs: tuple[str, ...]
    clients: tuple[str, ...]
    has_bucket: bool
    takes_over: bool = False
    compactors: tuple[str, ...] = ()
    has_peer_links: bool = False

    @property
    def services(self) -> tuple[str, ...]:
        """Every machine that can crash."""
        return (*self.controllers, *self.brokers, *self.gcs, *self.compactors)

    @property
    def lives(self) -> tuple[str, ...]:
        """Targets of process faults: every machine, and the leader twice if there are several controllers."""
        return (*self.services, LEADER, LEADER) if len(self.controllers) > 1 else self.services

    @property
    def disks(self) -> tuple[str, ...]:
        """Every machine with stored data."""
        return (*self.controllers, *self.brokers)

    @property
    def directions(self) -> tuple[str, ...]:
        """Every direction of a link that carries frames."""
        inner = [pair for pair in permutations(self.services, 2) if set(pair) & set(self.controllers)]
        outer = [
            pair
            for broker in self.brokers
            for client in self.clients
            for pair in ((broker, client), (client, broker))
        ]
        peers = permutations(self.brokers, 2) if self.has_peer_links else ()
        return tuple(f"{source}>{target}" for source, target in (*inner, *outer, *peers))


Draw = Callable[[random.Random], float]


def _below(*steps: float) -> Draw:
    """Draw a number between 0 and a random one of `steps`, so that short and long durations both occur."""
    return lambda chance: chance.choice(steps) * chance.random()


def _one_of(*values: float) -> Draw:
    return lambda chance: chance.choice(values)


@dataclass(frozen=True, slots=True)
class _Draws:
    targets: Callable[[Machines], Sequence[str]]
    duration_s: Draw
    degree: Draw = staticmethod(lambda _: 0.0)  # noqa: RUF009 - a pure function
    weight: int = 2


def _all_machines(_: Machines) -> Sequence[str]:
    return (ALL_MACHINES,)


def _store(machines: Machines) -> Sequence[str]:
    return (ALL_MACHINES,) if machines.has_bucket else ()


def _roles(machines: Machines) -> Sequence[str]:
    """Brokers and controllers that take part in moves and failovers."""
    if len(machines.brokers) == 1:
        return ()
    return (SOURCE, TARGET, LEADER, RECOVERER) if machines.takes_over else (SOURCE, TARGET, LEADER)


def _stopped(machines: Machines) -> Sequence[str]:
    """Any machine, and brokers more often if there are several: a stopped broker drains its partitions
    first.
    """
    return (
        (*machines.lives, *machines.brokers, *machines.brokers)
        if len(machines.brokers) > 1
        else machines.lives
    )


def _rotting(machines: Machines) -> Sequence[str]:
    """Machines whose stored bits may flip: a minority of the voters; never the disk with the only copy."""
    return machines.controllers[: (len(machines.controllers) - 1) // 2]


def _opened(machines: Machines) -> Sequence[str]:
    """Resources that processes of this cluster open."""
    return (
        *OPENINGS,
        *(OPENINGS_IN_BUCKETS if machines.has_bucket else ()),
        *(OPENINGS_OF_COMPACTORS if machines.compactors else ()),
    )


def _parted(machines: Machines) -> Sequence[str]:
    return (LEADER, *machines.controllers) if len(machines.controllers) > 1 else ()


DOWN_S: Final = _below(0.001, 0.1, 1.0, 3.0)
LINK_S: Final = _below(0.3, 1.0, 4.0)
DRAWS: Final[dict[FaultKind, _Draws]] = {
    FaultKind.CRASH: _Draws(lambda m: m.lives, DOWN_S, _one_of(1, 1, 1, 0), weight=4),
    FaultKind.CRASH_IN_OPERATION: _Draws(lambda m: m.disks, DOWN_S, lambda c: c.randint(1, 60), weight=3),
    FaultKind.CRASH_IN_STEP: _Draws(_roles, DOWN_S, lambda c: c.randrange(len(STEPS)), weight=5),
    FaultKind.BROKERS_CRASH: _Draws(
        lambda m: (ALL_MACHINES,) if len(m.brokers) > 1 else (), DOWN_S, lambda c: c.randrange(3)
    ),
    FaultKind.ZOMBIE: _Draws(lambda m: m.brokers if m.takes_over else (), _one_of(0.0)),
    FaultKind.POWER_CUT: _Draws(_all_machines, DOWN_S, weight=1),
    FaultKind.STOP: _Draws(_stopped, _below(0.5), weight=2),
    FaultKind.PAUSE: _Draws(lambda m: m.lives, lambda c: 0.1 + c.choice((0.5, 3.0, 10.0, 29.9)) * c.random()),
    FaultKind.CLOCK_DRIFT: _Draws(
        lambda m: m.lives, _below(5.0, 15.0), _one_of(0.9, 0.97, 1.03, 1.1), weight=1
    ),
    FaultKind.CLOCK_JUMP: _Draws(lambda m: m.services, _below(1.0, 10.0), _one_of(*CLOCK_JUMPS_MS), weight=1),
    FaultKind.RESET: _Draws(lambda m: m.directions, _one_of(0.0)),
    FaultKind.ABANDON: _Draws(lambda m: m.directions, _one_of(0.0), weight=3),
    FaultKind.CUT: _Draws(lambda m: m.directions, LINK_S, weight=3),
    FaultKind.ISOLATION: _Draws(lambda m: m.lives, LINK_S),
    FaultKind.PARTITION: _Draws(_parted, _below(1.0, 4.0), weight=3),
    FaultKind.STALE_LEADER: _Draws(
        lambda m: (LEADER,) if len(m.controllers) > 1 else (),
        lambda c: c.uniform(1.2, 3.0),
        lambda c: c.uniform(0.3, 1.5),
        weight=3,
    ),
    FaultKind.CLOG: _Draws(lambda m: m.directions, LINK_S),
    FaultKind.LOSS: _Draws(lambda m: m.directions, LINK_S, _one_of(0.005, 0.05, 0.3)),
    FaultKind.DELAY: _Draws(lambda m: m.directions, LINK_S, _one_of(0.05, 0.3, 1.5)),
    FaultKind.DISK_SLOW: _Draws(lambda m: m.disks, _below(0.5, 3.0), _one_of(0.05, 0.4, 1.5)),
    FaultKind.DISK_ERROR: _Draws(lambda m: m.disks, DOWN_S, lambda c: c.randint(0, 30)),
    FaultKind.DISK_FULL: _Draws(lambda m: m.brokers, _below(0.5, 3.0), weight=1),
    FaultKind.DISK_ROT: _Draws(_rotting, DOWN_S, lambda c: c.randrange(1 << 30), weight=1),
    FaultKind.STORE_ERRORS: _Draws(_store, LINK_S, _one_of(0.05, 0.3)),
    FaultKind.STORE_TIMEOUTS: _Draws(_store, LINK_S, _one_of(0.05, 0.3)),
    FaultKind.STORE_SHORT_READS: _Draws(_store, LINK_S, _one_of(0.02, 0.2)),
    FaultKind.STORE_SLOW: _Draws(_store, LINK_S, _one_of(0.2, 0.9)),
    FaultKind.STORE_DOWN: _Draws(_store, LINK_S, weight=1),
}
LATER_DRAWS: Final[dict[FaultKind, _Draws]] = {
    FaultKind.CUT_OFF: _Draws(lambda m: m.brokers, lambda c: c.uniform(1.0, 12.0)),
    FaultKind.LONG_PAUSE: _Draws(
        lambda m: (*m.lives, *m.clients), lambda c: 1.0 + c.choice((4.0, 4.0, 4.0, 15.0, 59.0)) * c.random()
    ),
    FaultKind.PAUSE_IN_TASK: _Draws(
        lambda m: m.compactors, _below(1.0, 3.0, 6.0), lambda c: c.choice((0.05, 0.5)) * c.random()
    ),
    FaultKind.CRASH_AT_OPEN: _Draws(_opened, DOWN_S),
    FaultKind.LOST_AT_OPEN: _Draws(_opened, _one_of(0.0)),
    FaultKind.PAUSE_AT_OPEN: _Draws(_opened, _below(1.0, 3.0, 6.0)),
}
"""Kinds that were added later. They have their own random numbers, so that older seeds do not change."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of a run. After `safety_s` seconds the injector ends all faults."""

    safety_s: float
    kinds: tuple[FaultKind, ...]
    faults: tuple[Fault, ...]

    def only(self, numbers: Sequence[int]) -> Schedule:
        """The same schedule with some of its faults."""
        wanted = set(numbers)
        return Schedule(
            self.safety_s, self.kinds, tuple(fault for fault in self.faults if fault.number in wanted)
        )

    def with_more(self, chance: random.Random, kind: FaultKind, machines: Machines, count: int) -> Schedule:
        """The same schedule with `count` more faults of a kind."""
        first = len(self.faults)
        more = [
            _draw(chance, number, chance.uniform(0.0, self.safety_s), kind, machines)
            for number in range(first, first + count)
        ]
        faults = sorted((*self.faults, *more), key=lambda fault: fault.at_s)
        safety_s = self.safety_s
        if kind is FaultKind.LONG_PAUSE:
            safety_s = max(safety_s, *(fault.at_s + fault.duration_s + AFTER_PAUSE_S for fault in more))
        return Schedule(safety_s, (*self.kinds, kind), tuple(faults))


def draw_schedule(chance: random.Random, machines: Machines) -> Schedule:
    """Draw a schedule for these machines."""
    kinds = [kind for kind, dice in DRAWS.items() if dice.targets(machines)]
    enabled = [kind for kind in kinds if chance.random() < KINDS_SHARE] or [FaultKind.CRASH]
    safety_s = chance.uniform(*SAFETY_S_BOUNDS)
    count = chance.randint(*FAULTS_BOUNDS)
    weights = [DRAWS[kind].weight for kind in enabled]
    times = sorted(chance.uniform(0.0, safety_s) for _ in range(count))
    faults = [
        _draw(chance, number, at_s, kind, machines)
        for number, (at_s, kind) in enumerate(
            zip(times, chance.choices(enabled, weights, k=count), strict=True)
        )
    ]
    return Schedule(safety_s, tuple(enabled), tuple(faults))


def _draw(chance: random.Random, number: int, at_s: float, kind: FaultKind, machines: Machines) -> Fault:
    dice = DRAWS[kind] if kind in DRAWS else LATER_DRAWS[kind]
    return Fault(
        number,
        round(at_s, 6),
        kind,
        chance.choice(list(dice.targets(machines))),
        round(dice.duration_s(chance), 6),
        dice.degree(chance),
    )
