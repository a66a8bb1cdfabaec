"""Faults: equal seeds draw equal schedules, parts keep their faults, and failing schedules are reduced."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from ponor_cluster_simulation.faults.fault import FaultKind
from ponor_cluster_simulation.faults.injector import store_faults
from ponor_cluster_simulation.faults.swarm import DRAWS, LATER_DRAWS, Machines, draw_schedule
from ponor_cluster_simulation.run.plan import draw_plan
from ponor_cluster_simulation.seeds import minimise

THREE = Machines(
    ("controller-0", "controller-1", "controller-2"),
    ("broker-0", "broker-1"),
    ("gc",),
    ("producer-0",),
    has_bucket=True,
    takes_over=True,
)
ONE = Machines(("controller",), ("broker",), (), ("producer-0",), has_bucket=False)


def test_a_seed_draws_one_plan() -> None:
    assert draw_plan(7) == draw_plan(7)
    assert draw_plan(7) != draw_plan(8)


def test_every_kind_is_drawn_by_some_seed_and_no_seed_has_all() -> None:
    schedules = [draw_schedule(random.Random(seed), THREE) for seed in range(200)]
    assert {fault.kind for schedule in schedules for fault in schedule.faults} == set(DRAWS)
    assert all(set(schedule.kinds) < set(DRAWS) for schedule in schedules)


def test_data_with_one_copy_does_not_rot_during_a_run() -> None:
    """The fault atlas: at most one of three voters, no single voter, and no broker's log."""
    for seed in range(200):
        rotten = {
            fault.target
            for machines in (THREE, ONE)
            for fault in draw_schedule(random.Random(seed), machines).faults
            if fault.kind is FaultKind.DISK_ROT
        }
        assert rotten <= {"controller-0"}


def test_a_part_keeps_its_faults_as_they_were() -> None:
    schedule = draw_schedule(random.Random(3), THREE)
    part = schedule.only([0, 2])
    assert part.faults == (schedule.faults[0], schedule.faults[2])
    assert part.safety_s == schedule.safety_s


def test_every_kind_can_be_drawn() -> None:
    assert set(DRAWS) | set(LATER_DRAWS) == set(FaultKind)


def test_faults_that_are_added_leave_the_others_as_they_were() -> None:
    machines = replace(THREE, compactors=("compactor-0",))
    before = draw_schedule(random.Random(3), machines)
    after = before.with_more(random.Random("more"), FaultKind.PAUSE_IN_TASK, machines, 2)
    assert after.only(range(len(before.faults))).faults == before.faults
    assert [fault.at_s for fault in after.faults] == sorted(fault.at_s for fault in after.faults)
    added = [fault for fault in after.faults if fault.kind is FaultKind.PAUSE_IN_TASK]
    assert [fault.target for fault in added] == ["compactor-0"] * 2


def test_faults_of_the_store_add_up() -> None:
    faults = [
        fault
        for seed in range(100)
        for fault in draw_schedule(random.Random(seed), THREE).faults
        if fault.kind in {FaultKind.STORE_ERRORS, FaultKind.STORE_DOWN}
    ]
    together = store_faults(faults)
    assert together.down
    assert together.before == max(fault.degree for fault in faults)
    assert not store_faults([]).down


@given(st.integers(min_value=0, max_value=24), st.sets(st.integers(min_value=0, max_value=23), max_size=4))
def test_minimising_keeps_exactly_the_faults_that_the_failure_needs(count: int, needed: set[int]) -> None:
    numbers = range(count)
    needed &= set(numbers)

    def fails(part: Sequence[int]) -> bool:
        return needed <= set(part)

    assert set(minimise(numbers, fails, tries_max=1_000)) == needed


def test_minimising_stops_at_its_bound() -> None:
    tries = 0

    def fails(part: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return len(part) > 10

    assert len(minimise(range(64), fails, tries_max=3)) > 10
    assert tries == 3
