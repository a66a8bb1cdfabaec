"""The `sticky` task assignor: a pure function from members and tasks to targets.

Active tasks stay with the member that had them, or move to a member that had them as standby, unless that
makes the numbers of tasks unequal. Standby tasks go to other processes than the active task. The load of a
process is its number of tasks divided by its number of members. Ties are broken by id, so that equal inputs
give equal targets.

Source: Apache Kafka 4.3.1, `StickyTaskAssignor`. It assigns no warm-up tasks and uses no client tags.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ponor_runtime.turns import Steps

from ponor_broker.groups.assignors.steps import StepBudget
from ponor_broker.groups.streams.assignment import TaskId, Tasks

_ITEMS_PER_TASK: Final = 10
"""What a task costs of a step's budget, without the choice of a member."""

Targets: TypeAlias = dict[str, Tasks]
"""The target of each member."""


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member as input of the assignor: its process, and its former target."""

    process_id: str
    former: Tasks


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """The tasks to assign.

    Attributes:
        counts: number of tasks by subtopology id.
        stateful: ids of the subtopologies with state: only these get standby tasks.
        standby_replicas: number of standby tasks of each task with state.
    """

    counts: Mapping[str, int]
    stateful: frozenset[str]
    standby_replicas: int

    @property
    def active_count(self) -> int:
        """Number of active tasks."""
        return sum(self.counts.values())

    @property
    def count(self) -> int:
        """Number of active and standby tasks."""
        standby = sum(count for each, count in self.counts.items() if each in self.stateful)
        return self.active_count + standby * self.standby_replicas

    def tasks(self) -> list[TaskId]:
        """Return all tasks."""
        return [TaskId(each, index) for each, count in self.counts.items() for index in range(count)]


class _Quota:
    """The number of tasks that each member may have: the average of the members that have not reached it."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.per_member = _average(tasks, members)

    def reached(self, count: int) -> None:
        """Note that a member has `count` tasks. One that has reached the average gets no more, and the others
        share the remaining tasks.
        """
        if count == self.per_member:
            self._members -= 1
            self._tasks -= count
            self.per_member = _average(self._tasks, self._members)


def _average(tasks: int, members: int) -> int:
    return 0 if not members else -(-tasks // members)


@dataclass(slots=True)
class _Process:
    """The tasks of one process."""

    process_id: str
    counts: dict[str, int] = field(default_factory=dict)
    """Number of tasks of each member."""
    tasks: set[TaskId] = field(default_factory=set)

    @property
    def load(self) -> float:
        # A process has a task only once, active or standby.
        return len(self.tasks) / len(self.counts)


class StickyTaskAssignor:
    """One assignment."""

    def __init__(self, members: Mapping[str, AssignedMember], demand: TaskDemand) -> None:
        self._demand = demand
        self._members = members
        self._active: dict[str, set[TaskId]] = {member_id: set() for member_id in members}
        self._standby: dict[str, set[TaskId]] = {member_id: set() for member_id in members}
        self._processes: dict[str, _Process] = {}
        self._executor: dict[TaskId, str] = {}
        """The former executor of a task."""
        self._copiers: dict[TaskId, list[str]] = {}
        """The members that had a task as standby."""
        for member_id, member in sorted(members.items()):
            process = self._processes.setdefault(member.process_id, _Process(member.process_id))
            process.counts[member_id] = 0
            self._executor.update(dict.fromkeys(member.former.active, member_id))
            for task in member.former.standby:
                self._copiers.setdefault(task, []).append(member_id)
        self._active_quota = _Quota(demand.active_count, len(members))
        self._quota = _Quota(demand.count, len(members))
        self._budget = StepBudget()

    def assign(self) -> Steps[Targets]:
        """Compute the target of each member."""
        if self._members:
            tasks = sorted(self._demand.tasks(), key=lambda task: (task.partition, task.subtopology_id))
            yield from self._assign_active(tasks)
            if self._demand.standby_replicas:
                yield from self._assign_standby(
                    [task for task in reversed(tasks) if task.subtopology_id in self._demand.stateful]
                )
        return {
            member_id: Tasks(frozenset(self._active[member_id]), frozenset(self._standby[member_id]))
            for member_id in self._members
        }

    # --- active tasks

    def _assign_active(self, tasks: list[TaskId]) -> Steps[None]:
        remaining: list[TaskId] = []
        for task in tasks:
            former = self._executor.get(task)
            if former is None or not self._has_active_room(former):
                remaining.append(task)
            else:
                self._add_active(former, task)
            if self._budget.spend(_ITEMS_PER_TASK):
                yield
        unassigned: list[TaskId] = []
        for task in remaining:
            copier = self._least_loaded(self._copiers.get(task, ()), None)
            if copier is None or not self._has_active_room(copier):
                unassigned.append(task)
            else:
                self._add_active(copier, task)
            if self._budget.spend(_ITEMS_PER_TASK):
                yield
        loads = self._loads()
        for task in sorted(unassigned):
            process = self._processes[loads[0][1]]
            self._add_active(_least_busy(process), task)
            heapq.heapreplace(loads, (process.load, process.process_id))
            if self._budget.spend(_ITEMS_PER_TASK, light_items=len(process.counts)):
                yield

    def _has_active_room(self, member_id: str) -> bool:
        return self._count_of(member_id) < self._active_quota.per_member

    def _add_active(self, member_id: str, task: TaskId) -> None:
        self._active[member_id].add(task)
        count = self._add(member_id, task)
        self._active_quota.reached(count)
        self._quota.reached(count)

    # --- standby tasks

    def _assign_standby(self, tasks: list[TaskId]) -> Steps[None]:
        remaining: list[tuple[TaskId, int]] = []
        for task in tasks:
            missing = self._demand.standby_replicas
            while missing and (member_id := self._former_for_standby(task)) is not None:
                self._add_standby(member_id, task)
                missing -= 1
            if missing:
                remaining.append((task, missing))
            if self._budget.spend(_ITEMS_PER_TASK):
                yield
        loads = self._loads()
        for task, missing in sorted(remaining, reverse=True):
            for _ in range(missing):
                if not self._add_standby_somewhere(loads, task):
                    break  # every process has the task already
            if self._budget.spend(_ITEMS_PER_TASK, light_items=len(self._members)):
                yield

    def _former_for_standby(self, task: TaskId) -> str | None:
        """Return a member with room that executed the task or had it as standby."""
        former = self._executor.get(task)
        if former is not None and not self._is_in_process(former, task) and self._has_room(former):
            return former
        copier = self._least_loaded(self._copiers.get(task, ()), task)
        return copier if copier is not None and self._has_room(copier) else None

    def _add_standby_somewhere(self, loads: list[tuple[float, str]], task: TaskId) -> bool:
        """Give the task to the process with the least load among those without it."""
        passed: list[tuple[float, str]] = []
        is_added = False
        while loads and not is_added:
            entry = heapq.heappop(loads)
            process = self._processes[entry[1]]
            if task in process.tasks:
                passed.append(entry)
                continue
            self._add_standby(_least_busy(process), task)
            passed.append((process.load, process.process_id))
            is_added = True
        for entry in passed:
            heapq.heappush(loads, entry)
        return is_added

    def _has_room(self, member_id: str) -> bool:
        return self._count_of(member_id) < self._quota.per_member

    def _add_standby(self, member_id: str, task: TaskId) -> None:
        self._standby[member_id].add(task)
        self._quota.reached(self._add(member_id, task))

    # --- members and processes

    def _process_of(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _is_in_process(self, member_id: str, task: TaskId) -> bool:
        return task in self._process_of(member_id).tasks

    def _count_of(self, member_id: str) -> int:
        return self._process_of(member_id).counts[member_id]

    def _add(self, member_id: str, task: TaskId) -> int:
        process = self._process_of(member_id)
        process.tasks.add(task)
        process.counts[member_id] += 1
        return process.counts[member_id]

    def _least_loaded(self, member_ids: Iterable[str], without: TaskId | None) -> str | None:
        """Return the member of the process with the least load; only processes that do not have a task."""
        fit = [each for each in member_ids if without is None or not self._is_in_process(each, without)]
        return min(
            fit, key=lambda each: (self._process_of(each).load, self._count_of(each), each), default=None
        )

    def _loads(self) -> list[tuple[float, str]]:
        loads = [(process.load, process.process_id) for process in self._processes.values()]
        heapq.heapify(loads)
        return loads


def _least_busy(process: _Process) -> str:
    return min(process.counts, key=lambda member_id: (process.counts[member_id], member_id))
