"""Plans of the balancer: moves, exceptions, and termination."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_controller.domains.balancing.loads import Traffic
from ponor_controller.domains.balancing.planner import Limits, plan

from services.controller.tests.domains.balancing.example_clusters import (
    GOALS,
    LIMITS,
    MB,
    Cluster,
    distances,
    in_flight,
    key,
    worst,
)
from tests.examples import examples


def _loaded(broker: int = 1, partitions: int = 12, each: float = 1.0 * MB) -> Cluster:
    cluster = Cluster([broker])
    cluster.add(broker, partitions, Traffic(each, each))
    return cluster


def test_a_single_broker_has_no_plan() -> None:
    planned = _loaded().plan()
    assert not planned.moves
    assert not planned.holding_back


def test_one_plan_balances_two_new_brokers_under_load() -> None:
    cluster = _loaded()
    cluster.brokers += [2, 3]
    planned = cluster.plan()
    assert len(planned.moves) == 8, "no partition moves twice, and no unnecessary one moves"
    cluster.carry_out(planned)
    assert Counter(cluster.at.values()) == {1: 4, 2: 4, 3: 4}
    assert not cluster.plan().moves


def test_a_new_broker_among_many_gets_its_share_although_no_broker_is_far_above_the_mean() -> None:
    cluster = Cluster(list(range(10)))
    for broker in range(9):
        cluster.add(broker, 10, Traffic(1.0 * MB, 0))
    cluster.carry_out(cluster.plan())
    assert 8 <= sum(at == 9 for at in cluster.at.values()) <= 9
    assert all(sum(at == broker for at in cluster.at.values()) >= 9 for broker in range(9))


def test_the_remaining_brokers_are_balanced_after_one_left() -> None:
    cluster = Cluster([1, 2, 3])
    for broker in (1, 2, 3):
        cluster.add(broker, 6, Traffic(2.0 * MB, 1.0 * MB))
    cluster.brokers.remove(3)
    for number in [number for number, at in cluster.at.items() if at == 3]:
        cluster.at[number] = 1  # wherever the failover placed them
    cluster.rest()
    assert abs(cluster.shares("traffic-in")[0] - 18.0 * MB) <= 2.0 * MB


def test_busy_partitions_are_spread_before_idle_ones() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 500)
    cluster.add(1, 4, Traffic(3.0 * MB, 0))
    first = cluster.plan()
    assert [move.goal for move in first.moves[:2]] == ["traffic-in"] * 2
    assert {move.goal for move in first.moves[2:]} == {"partitions"}
    assert len(first.moves) == LIMITS.moves_in_flight_max
    assert first.holding_back == "partitions: the maximum of 64 moves is in progress"
    cluster.carry_out(first)
    cluster.rest()
    assert cluster.shares("traffic-in") == [6.0 * MB, 6.0 * MB]
    assert abs(cluster.shares("partitions")[0] - 252) <= 26


def test_outgoing_traffic_is_balanced_separately() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 4, Traffic(1.0 * MB, 9.0 * MB))
    cluster.add(2, 4, Traffic(1.0 * MB, 0.0))
    cluster.rest()
    assert cluster.shares("traffic-out") == [18.0 * MB, 18.0 * MB]
    assert cluster.shares("traffic-in") == [4.0 * MB, 4.0 * MB], "one returned for each that moved away"
    assert len(cluster.moves) == 4


def test_differences_of_few_bytes_are_ignored() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 2, Traffic(100_000.0, 100_000.0))
    cluster.add(2, 2)
    assert not cluster.plan().moves
    assert not cluster.plan().holding_back


def test_a_partition_with_most_of_the_load_stays_and_the_plan_gives_the_reason() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 1, Traffic(40.0 * MB, 0))
    cluster.add(2, 1)
    planned = cluster.plan()
    assert not planned.moves
    assert planned.holding_back == (
        "traffic-in: no move of a partition makes this measure more even without making another measure"
        " uneven"
    )


def test_small_partitions_move_away_from_an_indivisible_one() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 1, Traffic(40.0 * MB, 0))
    cluster.add(1, 3, Traffic(2.0 * MB, 0))
    cluster.rest()
    assert cluster.at[0] == 1
    assert [cluster.at[number] for number in (1, 2, 3)] == [2, 2, 2]


def test_coordinators_stay_while_other_partitions_can_move() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 10, Traffic(1.0 * MB, 0), internal=True)
    cluster.add(1, 10, Traffic(1.0 * MB, 0))
    cluster.rest()
    assert all(cluster.at[number] == 1 for number in cluster.internal)
    assert abs(cluster.shares("traffic-in")[0] - 10.0 * MB) <= 1.0 * MB


def test_coordinators_move_when_no_other_partition_helps() -> None:
    cluster = Cluster([1, 2])
    cluster.add(1, 50, internal=True)
    cluster.add(1, 2)
    cluster.rest()
    assert abs(cluster.shares("partitions")[0] - 26) <= 3
    assert cluster.at[50] == cluster.at[51] == 2, "the others moved first"


def test_moves_in_progress_count_against_the_limit() -> None:
    cluster = _loaded(partitions=200)
    cluster.brokers.append(2)
    cluster_load = in_flight(cluster.cluster_load(), 60)
    planned = plan(cluster_load, GOALS, LIMITS)
    assert len(planned.moves) == 4
    assert "the maximum of 64 moves is in progress" in planned.holding_back


def test_recently_moved_partitions_stay() -> None:
    cluster = _loaded(partitions=4)
    cluster.brokers.append(2)
    cluster.cooling = set(range(4))
    planned = cluster.plan()
    assert not planned.moves
    assert "4 partitions with traffic moved recently" in planned.holding_back


def test_brokers_of_a_recent_move_are_not_balanced_by_traffic() -> None:
    cluster = _loaded(partitions=4)
    cluster.brokers.append(2)
    cluster.cool_brokers = {2: 3_000}
    planned = cluster.plan()
    assert {move.goal for move in planned.moves} == {"partitions"}, "counted without a measurement"
    assert planned.holding_back.startswith("traffic-in: ") or not planned.holding_back


def test_unknown_loads_cause_no_move() -> None:
    cluster = _loaded()
    cluster.brokers.append(2)
    planned = plan(replace(cluster.cluster_load(), unknown="no reports"), GOALS, LIMITS)
    assert not planned.moves
    assert planned.holding_back == ("traffic-in: no reports; traffic-out: no reports; partitions: no reports")


def test_every_move_has_a_short_reason_with_figures() -> None:
    cluster = _loaded()
    cluster.brokers.append(2)
    reasons = [move.reason for move in cluster.plan().moves]
    assert reasons[0] == (
        "traffic-in: broker 1 has 12.0 MB/s (+100 % from the mean 6.0 MB/s), broker 2 has 0 B/s; a move of"
        " 1.0 MB/s changes this to 11.0 MB/s and 1.0 MB/s"
    )
    assert max(map(len, reasons)) <= 256


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    brokers = list(range(1, 1 + draw(st.integers(2, 6))))
    cluster = Cluster(brokers)
    rates = st.one_of(st.just(0.0), st.floats(1_000.0, 20.0 * MB))
    for _ in range(draw(st.integers(1, 40))):
        cluster.add(
            draw(st.sampled_from(brokers)),
            1,
            Traffic(draw(rates), draw(rates)),
            internal=draw(st.booleans()),
        )
    return cluster


@settings(max_examples=examples(150), deadline=None)
@given(clusters(), st.integers(1, 64))
def test_plans_terminate_and_no_step_increases_the_imbalance(cluster: Cluster, bound: int) -> None:
    limits = Limits(20, bound)
    before, seen = distances(cluster.cluster_load()), worst(cluster.cluster_load())
    for _ in range(200):
        planned = cluster.plan(limits=limits)
        assert len(planned.moves) <= bound
        assert len({move.partition.key for move in planned.moves}) == len(planned.moves), "none moves twice"
        if not planned.moves:
            break
        cluster.carry_out(planned)
        now, at_worst = distances(cluster.cluster_load()), worst(cluster.cluster_load())
        assert all(after <= was + 1e-3 for after, was in zip(now, before, strict=True))
        assert sum(now) < sum(before)
        assert at_worst <= seen + 1e-9
        before, seen = now, at_worst
    else:
        raise AssertionError("it never rests")


@settings(max_examples=examples(60), deadline=None)
@given(clusters())
def test_equal_loads_give_equal_plans(cluster: Cluster) -> None:
    cluster_load = cluster.cluster_load()
    shuffled = replace(
        cluster_load,
        brokers=tuple(reversed(cluster_load.brokers)),
        movable=tuple(reversed(cluster_load.movable)),
    )
    assert plan(cluster_load, GOALS, LIMITS).moves == plan(shuffled, GOALS, LIMITS).moves


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(6, 60))
def test_noise_causes_no_moves(seed: int, brokers: int, partitions: int) -> None:
    """Rates vary by a tenth in both directions at every step, without cool-downs: balanced partitions
    stay.
    """
    chance = random.Random(seed)
    cluster = Cluster(list(range(brokers)))
    for _ in range(partitions):
        cluster.add(0, 1, Traffic(chance.uniform(0.2, 2.0) * MB, chance.uniform(0, 4.0) * MB))

    def noise() -> dict[int, float]:
        return {number: chance.uniform(0.9, 1.1) for number in cluster.at}

    for _ in range(20):
        cluster.carry_out(cluster.plan(noise()))
    settled = len(cluster.moves)
    for _ in range(100):
        cluster.carry_out(cluster.plan(noise()))
    times = Counter(number for number, _, _ in cluster.moves)
    assert max(times.values(), default=0) <= 8
    assert len(cluster.moves) - settled <= 12, "in a hundred steps"


def test_a_large_cluster_is_planned_within_its_limits() -> None:
    cluster = Cluster(list(range(40)))
    chance = random.Random(5)
    for _ in range(2_000):
        cluster.add(chance.randrange(20), 1, Traffic(chance.expovariate(1 / MB), chance.expovariate(1 / MB)))
    rounds = cluster.rest()
    assert rounds <= 40
    assert len(cluster.moves) <= 1_400
    mean = sum(cluster.shares("traffic-in")) / 40
    assert max(cluster.shares("traffic-in")) <= 1.2 * mean
    assert min(cluster.shares("traffic-in")) >= 0.8 * mean


def test_keys_order_equal_loads() -> None:
    cluster = _loaded(partitions=2)
    cluster.brokers.append(2)
    assert [move.partition.key for move in cluster.plan().moves] == [key(0)]
