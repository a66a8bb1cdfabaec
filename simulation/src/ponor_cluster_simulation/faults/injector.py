"""The injector: executes the faults of a schedule at their times, and ends them.

The state of links, machines and store is computed from the active faults. Faults may therefore overlap, and
omitting a fault does not change the meaning of others. The injector draws no random numbers.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ponor.metadata.v1.records_pb2 import Record
from ponor_simulation.disk import DiskFault, DiskSpeed
from ponor_simulation.links import DelayLaw, Direction, Links
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import SimProcess
from ponor_simulation.simulation import Simulation

from ponor_cluster_simulation.cluster.sim_cluster import SimCluster
from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.faults.fault import (
    ALL_MACHINES,
    LEADER,
    RECOVERER,
    SOURCE,
    STEPS,
    TARGET,
    Fault,
    FaultKind,
)
from ponor_cluster_simulation.faults.openings import AT_OPEN, Openings

DISK_OPERATIONS: Final = ("sync", "write", "sync", "read")
"""The operation that a disk error affects, by degree."""
STOP_S_MAX: Final = 60.0
"""Time in which a stopped process must end."""
LASTING: Final = frozenset(
    {
        FaultKind.CLOCK_DRIFT,
        FaultKind.CUT,
        FaultKind.ISOLATION,
        FaultKind.PARTITION,
        FaultKind.CUT_OFF,
        FaultKind.CLOG,
        FaultKind.LOSS,
        FaultKind.DELAY,
        FaultKind.DISK_SLOW,
        FaultKind.DISK_FULL,
        FaultKind.STORE_ERRORS,
        FaultKind.STORE_TIMEOUTS,
        FaultKind.STORE_SHORT_READS,
        FaultKind.STORE_SLOW,
        FaultKind.STORE_DOWN,
    }
)
"""Kinds that change a state for their duration."""
CUTTING: Final = frozenset({FaultKind.ISOLATION, FaultKind.CUT_OFF})
ON_LINKS: Final = frozenset(
    {
        FaultKind.CUT,
        FaultKind.CLOG,
        FaultKind.LOSS,
        FaultKind.DELAY,
        FaultKind.RESET,
        FaultKind.ABANDON,
    }
)
HINDERING: Final = frozenset(
    {
        FaultKind.CLOCK_DRIFT,
        FaultKind.CLOCK_JUMP,
        FaultKind.DISK_SLOW,
        FaultKind.DISK_ERROR,
        FaultKind.DISK_FULL,
        FaultKind.STORE_ERRORS,
        FaultKind.STORE_TIMEOUTS,
        FaultKind.STORE_SHORT_READS,
        FaultKind.STORE_SLOW,
        FaultKind.STORE_DOWN,
    }
)
"""Kinds that slow a broker down but do not disconnect it from the controllers."""


class FaultInjector:
    """Executes a schedule on a cluster.

    Attributes:
        crashes: number of processes that faults ended.
        sleeping: zombies, each with the life in which it was paused.
    """

    def __init__(
        self, simulation: Simulation, cluster: SimCluster, processes: Sequence[str], coverage: Coverage
    ) -> None:
        self._simulation = simulation
        self._cluster = cluster
        self._processes = tuple(processes)
        self._coverage = coverage
        self._active: dict[int, Fault] = {}
        self._until_s: dict[int, float] = {}
        self.crashes = 0
        self.cut_off_until_s: dict[str, float] = {}
        """By process: the latest end of faults that disconnect it from the controllers, and of orderly stops.
        """
        self.hindered_until_s: dict[str, float] = {}
        """By process: the latest end of faults that affect its disk, its clock or the store."""
        self.sleeping: dict[str, object] = {}
        self._roles: dict[str, str] = {}
        self._awaiting: list[Fault] = []
        self._openings = Openings(cluster.name_of, self._strike_opener, self._count_opening)
        if cluster.store is not None:
            cluster.store.bucket.on_applied = self._openings.applied
        self._instant: dict[FaultKind, Callable[[Fault], None]] = {
            FaultKind.CRASH: self._crash,
            FaultKind.CRASH_IN_OPERATION: self._crash_in_operation,
            FaultKind.CRASH_IN_STEP: self._awaiting.append,
            FaultKind.BROKERS_CRASH: self._brokers_crash,
            FaultKind.ZOMBIE: self._sleep,
            FaultKind.POWER_CUT: self._power_cut,
            FaultKind.STOP: self._stop,
            FaultKind.PAUSE: self._pause,
            FaultKind.LONG_PAUSE: self._pause,
            FaultKind.PAUSE_IN_TASK: self._awaiting.append,
            FaultKind.STALE_LEADER: self._stale_leader,
            FaultKind.CLOCK_JUMP: self._jump,
            FaultKind.RESET: self._reset,
            FaultKind.ABANDON: self._abandon,
            FaultKind.DISK_ERROR: self._disk_error,
            FaultKind.DISK_ROT: self._rot,
            **dict.fromkeys(AT_OPEN, self._openings.wait),
        }

    async def run(self, faults: Sequence[Fault]) -> None:
        """Execute all faults, each `at_s` seconds from now."""
        began = self._simulation.loop.time()
        for fault in faults:
            await asyncio.sleep(max(began + fault.at_s - self._simulation.loop.time(), 0.0))
            self._begin(fault)

    def heal(self) -> None:
        """End all faults, resume paused processes except zombies, and start stopped ones."""
        self._active.clear()
        self._awaiting.clear()
        self._openings.clear()
        self._refresh()
        for process in self._cluster.processes.values():
            process.disk.faults.clear()
            process.disk.watch = None
            process.clock.drift(1.0)
        for process in self._simulation.processes.values():
            if process.paused and process.name not in self.sleeping:
                process.resume()
        self._cluster.start_all()

    def wake(self) -> list[str]:
        """Resume the zombies. Return their names."""
        woken = [name for name, life in self.sleeping.items() if self._is_asleep(name, life)]
        self.sleeping.clear()
        for name in woken:
            self._coverage.effects["zombies that resumed after the judgement"] += 1
            self._cluster.processes[name].resume()
        return woken

    def committed(self, record: Record) -> None:
        """Execute the faults that wait for this record."""
        self._note_roles(record)
        self._openings.committed(record)
        kind = record.WhichOneof("kind")
        if kind == "compaction_leased":
            self._task_given(record.compaction_leased.worker_id)
        if kind not in STEPS:
            return
        due = [
            fault
            for fault in self._awaiting
            if fault.kind is FaultKind.CRASH_IN_STEP and STEPS[int(fault.degree)] == kind
        ]
        for fault in due:
            target = self._cluster.leader if fault.target == LEADER else self._roles.get(fault.target)
            if target is not None:
                self._awaiting.remove(fault)
                self._coverage.effects[f"crashes of the {fault.target} in step {kind}"] += 1
                self._later(0.0, partial(self._crash, replace(fault, target=target, degree=1.0)))

    def _task_given(self, worker_id: int) -> None:
        for fault in [each for each in self._awaiting if each.kind is FaultKind.PAUSE_IN_TASK]:
            if self._cluster.node_of(fault.target) == worker_id:
                self._awaiting.remove(fault)
                self._coverage.effects["compactors paused in a task"] += 1
                self._later(fault.degree, partial(self._pause, fault))

    def _count_opening(self, fault: Fault, what: str) -> None:
        self._coverage.effects[f"{fault.kind.value}: {what}"] += 1

    def _strike_opener(self, fault: Fault, name: str) -> None:
        if name in self._cluster.processes:
            self._later(0.0, partial(self._strike_at_open, replace(fault, target=name)))

    def _strike_at_open(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.CRASH_AT_OPEN:
                self._crash(replace(fault, degree=1.0))
            case FaultKind.PAUSE_AT_OPEN:
                self._pause(fault)
            case FaultKind.LOST_AT_OPEN:
                self._note(self.cut_off_until_s, [fault.target], 0.0)
                for controller in self._cluster.controllers:
                    self._simulation.network.reset_connections(fault.target, controller)

    def _begin(self, fault: Fault) -> None:
        self._simulation.trace.record(self._simulation.loop.time(), "fault", str(fault))
        self._coverage.faults[fault.kind.value] += 1
        self._note_struck(fault)
        if fault.target == LEADER and fault.kind is not FaultKind.CRASH_IN_STEP:
            fault = replace(fault, target=self._cluster.leader or self._cluster.controllers[0])
        if fault.kind in LASTING:
            self._last(fault)
        else:
            self._instant[fault.kind](fault)

    def _note_struck(self, fault: Fault) -> None:
        """Record until when a fault is a valid reason for a fence. `SimProcess` records pauses and ends
        itself.
        """
        if fault.kind in CUTTING:
            self._note(self.cut_off_until_s, [fault.target], fault.duration_s)
        elif fault.kind is FaultKind.STOP:
            self._note(self.cut_off_until_s, [fault.target], STOP_S_MAX)
        elif fault.kind in ON_LINKS:
            if set(fault.direction) & set(self._cluster.controllers):
                self._note(self.cut_off_until_s, fault.direction, fault.duration_s)
        elif fault.kind in HINDERING:
            brokers = self._cluster.brokers
            self._note(
                self.hindered_until_s,
                brokers if fault.target == ALL_MACHINES else [fault.target],
                fault.duration_s,
            )

    def _note(self, until_s: dict[str, float], names: Sequence[str], seconds: float) -> None:
        for name in names:
            until_s[name] = max(until_s.get(name, 0.0), self._simulation.loop.time() + seconds)

    def _last(self, fault: Fault) -> None:
        self._active[fault.number] = fault
        self._until_s[fault.number] = self._simulation.loop.time() + fault.duration_s
        self._refresh()
        self._later(fault.duration_s, partial(self._end, fault))

    def _end(self, fault: Fault) -> None:
        if self._active.pop(fault.number, None) is not None:
            self._refresh()

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._simulation.loop.call_later(seconds, callback, context=self._simulation.loop.outside)

    # Faults with a duration

    def _refresh(self) -> None:
        active = list(self._active.values())
        self._simulation.network.change_links(self._links(active))
        for name, process in self._cluster.processes.items():
            self._set_machine(process, [fault for fault in active if fault.target == name])
        if self._cluster.store is not None:
            self._cluster.store.faults = store_faults(active)

    def _links(self, active: Sequence[Fault]) -> Links:
        links = Links()
        for fault in active:
            match fault.kind:
                case FaultKind.CUT:
                    links.cuts[fault.direction] = None
                case FaultKind.ISOLATION:
                    links.cuts.update(dict.fromkeys(_directions(fault.target, self._processes)))
                case FaultKind.PARTITION | FaultKind.CUT_OFF:
                    links.cuts.update(dict.fromkeys(_directions(fault.target, self._cluster.controllers)))
                case FaultKind.CLOG:
                    until_s = max(
                        self._until_s[fault.number], links.clogged_until_s.get(fault.direction, 0.0)
                    )
                    links.clogged_until_s[fault.direction] = until_s
                case FaultKind.LOSS:
                    links.losses[fault.direction] = fault.degree
                case FaultKind.DELAY:
                    links.delays[fault.direction] = DelayLaw(tail_share=0.2, tail_s=fault.degree)
        return links

    def _set_machine(self, process: SimProcess, active: Sequence[Fault]) -> None:
        speed, rate, is_full = DiskSpeed(), 1.0, False
        for fault in active:
            if fault.kind is FaultKind.DISK_SLOW:
                speed.sync_s = (fault.degree / 8, fault.degree)
            elif fault.kind is FaultKind.CLOCK_DRIFT:
                rate = fault.degree
            is_full = is_full or fault.kind is FaultKind.DISK_FULL
        process.disk.speed = speed
        process.clock.drift(rate)
        if is_full and process.disk.capacity_bytes is None:
            process.disk.capacity_bytes = process.disk.state.used_bytes()
        elif not is_full:
            process.disk.capacity_bytes = None

    # Faults at a moment

    def _crash(self, fault: Fault) -> None:
        self._end_process(fault.target, power_loss=fault.degree > 0)
        self._restart_later(fault.target, fault.duration_s)

    def _end_process(self, name: str, *, power_loss: bool) -> None:
        process = self._cluster.processes[name]
        if process.running:
            self.crashes += 1
            process.crash(power_loss=power_loss)

    def _restart_later(self, name: str, seconds: float) -> None:
        def restart() -> None:
            if not self._cluster.processes[name].running:
                self._cluster.start(name)

        self._later(seconds, restart)

    def _crash_in_operation(self, fault: Fault) -> None:
        process = self._cluster.processes[fault.target]
        countdown = int(fault.degree)

        def count(*_: object) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                process.disk.watch = None
                self._coverage.effects["crashes in the middle of a disk operation"] += 1
                self._later(0.0, partial(self._crash, fault))

        process.disk.watch = count

    def _note_roles(self, record: Record) -> None:
        """Record the brokers of the newest move and the newest recovery."""
        roles = {}
        match record.WhichOneof("kind"):
            case "partition_move_begun":
                begun = record.partition_move_begun
                roles = {SOURCE: begun.source_id, TARGET: begun.target_id}
            case "wal_recovery_assigned":
                roles = {RECOVERER: record.wal_recovery_assigned.recoverer_id}
        for role, node_id in roles.items():
            name = self._cluster.broker_of(node_id)
            if name is not None:
                self._roles[role] = name

    def _brokers_crash(self, fault: Fault) -> None:
        brokers = self._cluster.brokers
        for number, name in enumerate(brokers):
            if number != int(fault.degree) % len(brokers):
                self._end_process(name, power_loss=True)
                self._restart_later(name, fault.duration_s)

    def _sleep(self, fault: Fault) -> None:
        """Pause one of several brokers until the judgement; the others must continue without it."""
        process = self._cluster.processes[fault.target]
        is_registered = fault.target in self._cluster.serving  # an unregistered broker has no rights to lose
        if process.running and is_registered and not process.paused and not self.sleeping:
            self.sleeping[fault.target] = process.runtime
            process.pause()

    def _is_asleep(self, name: str, life: object) -> bool:
        process = self._cluster.processes[name]
        return process.paused and process.runtime is life

    def _power_cut(self, fault: Fault) -> None:
        for name in self._cluster.processes:
            self._end_process(name, power_loss=True)
            self._restart_later(name, fault.duration_s)

    def _stop(self, fault: Fault) -> None:
        if fault.target in self._cluster.serving and self._cluster.processes[fault.target].running:
            self._cluster.stop(fault.target)

    def _pause(self, fault: Fault) -> None:
        process = self._simulation.processes[fault.target]
        if not process.running or process.paused:
            return
        life = process.runtime
        process.pause()

        def resume() -> None:
            if process.runtime is life and process.paused:
                self._coverage.effects["processes resumed after a pause"] += 1
                process.resume()

        self._later(fault.duration_s, resume)

    def _stale_leader(self, fault: Fault) -> None:
        self._pause(fault)
        self._last(replace(fault, kind=FaultKind.PARTITION, duration_s=fault.duration_s + fault.degree))

    def _jump(self, fault: Fault) -> None:
        clock = self._cluster.processes[fault.target].clock
        clock.jump_wall(int(fault.degree))
        self._later(fault.duration_s, partial(clock.jump_wall, -int(fault.degree)))

    def _reset(self, fault: Fault) -> None:
        self._coverage.effects["connections reset"] += self._simulation.network.reset_connections(
            *fault.direction
        )

    def _abandon(self, fault: Fault) -> None:
        self._simulation.network.abandon_connections(*fault.direction)

    def _disk_error(self, fault: Fault) -> None:
        skip = int(fault.degree)
        operation = DISK_OPERATIONS[skip % len(DISK_OPERATIONS)]
        self._cluster.processes[fault.target].disk.faults.append(DiskFault(operation, errno.EIO, skip=skip))

    def _rot(self, fault: Fault) -> None:
        """Stop a machine in order and flip a bit on its disk. The next start must detect the flipped bit.

        Only an orderly stop writes a proof that the log's last group was synced. Without the proof, no format
        with one copy can distinguish damage of this group from a torn write.
        """
        process = self._cluster.processes[fault.target]
        if fault.target not in self._cluster.serving or not process.running:
            return
        self._cluster.stop(fault.target)

        def flip() -> None:
            if process.running or process.failure is not None:
                return
            place = process.disk.rot(int(fault.degree))
            if place is not None:
                self._cluster.flipped_bits[fault.target] = place

        process.when_ended = flip


def _directions(name: str, others: Sequence[str]) -> Iterator[Direction]:
    for other in others:
        if other != name:
            yield (name, other)
            yield (other, name)


def store_faults(active: Sequence[Fault]) -> StoreFaults:
    """The state of the object store under active faults."""
    faults = StoreFaults()
    for fault in active:
        match fault.kind:
            case FaultKind.STORE_ERRORS:
                faults.before = max(faults.before, fault.degree)
            case FaultKind.STORE_TIMEOUTS:
                faults.after = max(faults.after, fault.degree)
            case FaultKind.STORE_SHORT_READS:
                faults.short_read = max(faults.short_read, fault.degree)
            case FaultKind.STORE_SLOW:
                faults.latency_s = (fault.degree / 4, fault.degree)
            case FaultKind.STORE_DOWN:
                faults.down = True
    return faults
