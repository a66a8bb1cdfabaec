"""Swarm: a seed chooses which kinds of fault a run has at all, and then when each of them strikes.

What lives here: the dice. A run in which everything happens all the time reaches little: a store that is always down hides what a pause would have shown. So each seed
leaves about half of the kinds out (Groce et al., "Swarm Testing", 2012). All of a schedule is drawn before the run begins; nothing that happens in a run moves the dice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from ponor_cluster_simulation.faults.fault import (
    EVERYBODY,
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
"""What a process does when it goes on after a long pause is a part of the run."""

CLOCK_JUMPS_MS: Final = (-1_500_000, -5_000, 5_000, 1_500_000)
"""Two at once stay below the hour by which a record's timestamp may be ahead of the broker (message.timestamp.after.max.ms): beyond it a refusal is right."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Whom faults may strike.

    Attributes:
        controllers, brokers, gcs, compactors: services, by the names of their processes.
        clients: processes that only have links.
        has_bucket: objects are in a bucket that can be in trouble of its own.
        takes_over: a broker recovers what another one left.
    """

    controllers: tuple[str, ...]
    brokers: tuple[str, ...]
    gcs: tuple[str, ...]
    clients: tuple[str, ...]
    has_bucket: bool
    takes_over: bool = False
    compactors: tuple[str, ...] = ()

    @property
    def services(self) -> tuple[str, ...]:
        """Every machine that can crash."""
        return (*self.controllers, *self.brokers, *self.gcs, *self.compactors)

    @property
    def lives(self) -> tuple[str, ...]:
        """Whom to strike: every machine, and twice as often as one of several controllers the one that leads."""
        return (*self.services, LEADER, LEADER) if len(self.controllers) > 1 else self.services

    @property
    def disks(self) -> tuple[str, ...]:
        """Every machine that keeps something."""
        return (*self.controllers, *self.brokers)

    @property
    def directions(self) -> tuple[str, ...]:
        """Every direction that carries something."""
        inner = [pair for pair in permutations(self.services, 2) if set(pair) & set(self.controllers)]
        outer = [
            pair
            for broker in self.brokers
            for client in self.clients
            for pair in ((broker, client), (client, broker))
        ]
        return tuple(f"{source}>{target}" for source, target in (*inner, *outer))


Draw = Callable[[random.Random], float]


def _below(*steps: float) -> Draw:
    """Up to one of these; short and long ones are equally likely, as uniform draws would not make them."""
    return lambda chance: chance.choice(steps) * chance.random()


def _one_of(*values: float) -> Draw:
    return lambda chance: chance.choice(values)


@dataclass(frozen=True, slots=True)
class _Dice:
    targets: Callable[[Machines], Sequence[str]]
    duration_s: Draw
    degree: Draw = staticmethod(lambda _: 0.0)  # noqa: RUF009 - a pure function
    weight: int = 2


def _everybody(_: Machines) -> Sequence[str]:
    return (EVERYBODY,)


def _store(machines: Machines) -> Sequence[str]:
    return (EVERYBODY,) if machines.has_bucket else ()


def _roles(machines: Machines) -> Sequence[str]:
    """Whom the steps of a move or of a failover concern."""
    if len(machines.brokers) == 1:
        return ()
    return (SOURCE, TARGET, LEADER, RECOVERER) if machines.takes_over else (SOURCE, TARGET, LEADER)


def _stopped(machines: Machines) -> Sequence[str]:
    """Everybody may be stopped; a broker among several gives its partitions away first."""
    return (
        (*machines.lives, *machines.brokers, *machines.brokers)
        if len(machines.brokers) > 1
        else machines.lives
    )


def _rotting(machines: Machines) -> Sequence[str]:
    """The fault atlas: a minority of the voters, and of what has one copy nothing."""
    return machines.controllers[: (len(machines.controllers) - 1) // 2]


def _opened(machines: Machines) -> Sequence[str]:
    """What is opened in this cluster."""
    return (
        *OPENINGS,
        *(OPENINGS_IN_BUCKETS if machines.has_bucket else ()),
        *(OPENINGS_OF_COMPACTORS if machines.compactors else ()),
    )


def _parted(machines: Machines) -> Sequence[str]:
    return (LEADER, *machines.controllers) if len(machines.controllers) > 1 else ()


DOWN_S: Final = _below(0.001, 0.1, 1.0, 3.0)
LINK_S: Final = _below(0.3, 1.0, 4.0)
DICE: Final[dict[FaultKind, _Dice]] = {
    FaultKind.CRASH: _Dice(lambda m: m.lives, DOWN_S, _one_of(1, 1, 1, 0), weight=4),
    FaultKind.CRASH_IN_OPERATION: _Dice(lambda m: m.disks, DOWN_S, lambda c: c.randint(1, 60), weight=3),
    FaultKind.CRASH_IN_STEP: _Dice(_roles, DOWN_S, lambda c: c.randrange(len(STEPS)), weight=5),
    FaultKind.BROKERS_CRASH: _Dice(
        lambda m: (EVERYBODY,) if len(m.brokers) > 1 else (), DOWN_S, lambda c: c.randrange(3)
    ),
    FaultKind.ZOMBIE: _Dice(lambda m: m.brokers if m.takes_over else (), _one_of(0.0)),
    FaultKind.POWER_CUT: _Dice(_everybody, DOWN_S, weight=1),
    FaultKind.STOP: _Dice(_stopped, _below(0.5), weight=2),
    FaultKind.PAUSE: _Dice(lambda m: m.lives, lambda c: 0.1 + c.choice((0.5, 3.0, 10.0, 29.9)) * c.random()),
    FaultKind.CLOCK_DRIFT: _Dice(
        lambda m: m.lives, _below(5.0, 15.0), _one_of(0.9, 0.97, 1.03, 1.1), weight=1
    ),
    FaultKind.CLOCK_JUMP: _Dice(lambda m: m.services, _below(1.0, 10.0), _one_of(*CLOCK_JUMPS_MS), weight=1),
    FaultKind.RESET: _Dice(lambda m: m.directions, _one_of(0.0)),
    FaultKind.ABANDON: _Dice(lambda m: m.directions, _one_of(0.0), weight=3),
    FaultKind.CUT: _Dice(lambda m: m.directions, LINK_S, weight=3),
    FaultKind.ISOLATION: _Dice(lambda m: m.lives, LINK_S),
    FaultKind.PARTITION: _Dice(_parted, _below(1.0, 4.0), weight=3),
    FaultKind.STALE_LEADER: _Dice(
        lambda m: (LEADER,) if len(m.controllers) > 1 else (),
        lambda c: c.uniform(1.2, 3.0),
        lambda c: c.uniform(0.3, 1.5),
        weight=3,
    ),
    FaultKind.CLOG: _Dice(lambda m: m.directions, LINK_S),
    FaultKind.LOSS: _Dice(lambda m: m.directions, LINK_S, _one_of(0.005, 0.05, 0.3)),
    FaultKind.DELAY: _Dice(lambda m: m.directions, LINK_S, _one_of(0.05, 0.3, 1.5)),
    FaultKind.DISK_SLOW: _Dice(lambda m: m.disks, _below(0.5, 3.0), _one_of(0.05, 0.4, 1.5)),
    FaultKind.DISK_ERROR: _Dice(lambda m: m.disks, DOWN_S, lambda c: c.randint(0, 30)),
    FaultKind.DISK_FULL: _Dice(lambda m: m.brokers, _below(0.5, 3.0), weight=1),
    FaultKind.DISK_ROT: _Dice(_rotting, DOWN_S, lambda c: c.randrange(1 << 30), weight=1),
    FaultKind.STORE_ERRORS: _Dice(_store, LINK_S, _one_of(0.05, 0.3)),
    FaultKind.STORE_TIMEOUTS: _Dice(_store, LINK_S, _one_of(0.05, 0.3)),
    FaultKind.STORE_SHORT_READS: _Dice(_store, LINK_S, _one_of(0.02, 0.2)),
    FaultKind.STORE_SLOW: _Dice(_store, LINK_S, _one_of(0.2, 0.9)),
    FaultKind.STORE_DOWN: _Dice(_store, LINK_S, weight=1),
}
LATER_DICE: Final[dict[FaultKind, _Dice]] = {
    FaultKind.CUT_OFF: _Dice(lambda m: m.brokers, lambda c: c.uniform(1.0, 12.0)),
    FaultKind.LONG_PAUSE: _Dice(
        lambda m: (*m.lives, *m.clients), lambda c: 1.0 + c.choice((4.0, 4.0, 4.0, 15.0, 59.0)) * c.random()
    ),
    FaultKind.PAUSE_IN_TASK: _Dice(
        lambda m: m.compactors, _below(1.0, 3.0, 6.0), lambda c: c.choice((0.05, 0.5)) * c.random()
    ),
    FaultKind.CRASH_AT_OPEN: _Dice(_opened, DOWN_S),
    FaultKind.LOST_AT_OPEN: _Dice(_opened, _one_of(0.0)),
    FaultKind.PAUSE_AT_OPEN: _Dice(_opened, _below(1.0, 3.0, 6.0)),
}
"""Kinds that came later, and are added to schedules with dice of their own: the others mean what they always meant."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that will happen to a run. `safety_s` is how long; then all is healed."""

    safety_s: float
    kinds: tuple[FaultKind, ...]
    faults: tuple[Fault, ...]

    def only(self, numbers: Sequence[int]) -> Schedule:
        """The same with some of the faults."""
        wanted = set(numbers)
        return Schedule(
            self.safety_s, self.kinds, tuple(fault for fault in self.faults if fault.number in wanted)
        )

    def with_more(self, chance: random.Random, kind: FaultKind, machines: Machines, count: int) -> Schedule:
        """The same, and as many more of a kind."""
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
    """What a seed does to these machines."""
    kinds = [kind for kind, dice in DICE.items() if dice.targets(machines)]
    enabled = [kind for kind in kinds if chance.random() < KINDS_SHARE] or [FaultKind.CRASH]
    safety_s = chance.uniform(*SAFETY_S_BOUNDS)
    count = chance.randint(*FAULTS_BOUNDS)
    weights = [DICE[kind].weight for kind in enabled]
    times = sorted(chance.uniform(0.0, safety_s) for _ in range(count))
    faults = [
        _draw(chance, number, at_s, kind, machines)
        for number, (at_s, kind) in enumerate(
            zip(times, chance.choices(enabled, weights, k=count), strict=True)
        )
    ]
    return Schedule(safety_s, tuple(enabled), tuple(faults))


def _draw(chance: random.Random, number: int, at_s: float, kind: FaultKind, machines: Machines) -> Fault:
    dice = DICE[kind] if kind in DICE else LATER_DICE[kind]
    return Fault(
        number,
        round(at_s, 6),
        kind,
        chance.choice(list(dice.targets(machines))),
        round(dice.duration_s(chance), 6),
        dice.degree(chance),
    )
