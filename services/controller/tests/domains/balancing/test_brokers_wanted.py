"""The metric for autoscalers: it rises when the need lasts, falls late, and does not oscillate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_controller.domains.balancing.brokers_wanted import SLOTS, BrokersWanted, brokers_needed, load_of
from ponor_controller.domains.balancing.cluster_load import BrokerStanding
from ponor_controller.domains.balancing.goals import goals_of
from ponor_controller.domains.balancing.loads import Traffic
from ponor_controller.settings import BalanceSettings
from ponor_runtime.identity import NodeId

SETTINGS = BalanceSettings()
GOALS = goals_of(SETTINGS)
FULL_IN = float(SETTINGS.balance_capacity_in_bytes_per_s)
SECOND_NS = 1_000_000_000


def _broker(
    number: int = 1, *, into: float = 0.0, out: float = 0.0, partitions: int = 0, cpu: float = 0.0
) -> BrokerStanding:
    return BrokerStanding(NodeId(number), partitions, Traffic(into, out), cpu=cpu)


def test_the_load_of_a_broker_is_its_largest_share() -> None:
    assert load_of(_broker(), GOALS) == 0
    assert load_of(_broker(into=FULL_IN / 2, partitions=400), GOALS) == 0.5
    assert load_of(_broker(into=FULL_IN / 2, cpu=0.8), GOALS) == 0.8


def test_an_idle_cluster_wants_one_broker_and_a_busy_one_stays_below_seven_tenths() -> None:
    assert brokers_needed([], GOALS, 70) == 1
    assert brokers_needed([_broker(), _broker(2)], GOALS, 70) == 1
    assert brokers_needed([_broker(into=0.7 * FULL_IN)], GOALS, 70) == 1
    assert brokers_needed([_broker(into=0.71 * FULL_IN)], GOALS, 70) == 2
    assert brokers_needed([_broker(into=0.7 * FULL_IN), _broker(2, into=0.8 * FULL_IN)], GOALS, 70) == 3
    assert brokers_needed([_broker(cpu=0.9), _broker(2, cpu=0.9), _broker(3, cpu=0.9)], GOALS, 70) == 4
    assert brokers_needed([_broker(partitions=9_000)], GOALS, 70) == 4


def _wanted() -> BrokersWanted:
    return BrokersWanted(15_000, 600_000)


def test_it_rises_when_the_need_lasts_and_falls_after_the_window() -> None:
    wanted = _wanted()
    wanted.begin(1, 0)
    for second in range(15):
        wanted.need(3, second * SECOND_NS)
        assert wanted.count == 1, "a short need does not count"
    wanted.need(3, 16 * SECOND_NS)
    assert wanted.count == 3
    for second in range(20, 600, 5):
        wanted.need(1, second * SECOND_NS)
        assert wanted.count == 3, "a pause stops no broker"
    for second in range(600, 640):
        wanted.need(2, second * SECOND_NS)
    assert wanted.count == 2, "the need in between counts too"
    for second in range(640, 1_300):
        wanted.need(1, second * SECOND_NS)
    assert wanted.count == 1


def test_the_start_of_brokers_causes_no_further_rise() -> None:
    """Each is busy with its own start for a few seconds."""
    wanted = _wanted()
    wanted.begin(1, 0)
    for second in range(600):
        wanted.need(4 if second % 20 < 10 else 1, second * SECOND_NS)
        assert wanted.count == 1


def test_a_new_leader_without_reports_does_not_lower_it() -> None:
    wanted = _wanted()
    assert wanted.count == 0, "it does not lead"
    wanted.begin(5, 0)
    wanted.need(1, 300 * SECOND_NS)
    assert wanted.count == 5


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 9)), min_size=1, max_size=200))
def test_it_stays_between_the_minimum_and_the_maximum_need(
    steps: list[tuple[int, int]],
) -> None:
    """Seconds since the previous step, needed brokers."""
    wanted, now_ns, history = _wanted(), 0, []
    for seconds, needed in steps:
        now_ns += seconds * SECOND_NS
        wanted.need(needed, now_ns)
        history.append((now_ns, needed))
        wide = [brokers for at_ns, brokers in history if at_ns >= now_ns - 611 * SECOND_NS]
        lately = [brokers for at_ns, brokers in history if at_ns >= now_ns - 16 * SECOND_NS]
        assert min(lately) <= wanted.count <= max(wide)
        assert len(wanted._needed._slots) <= SLOTS + 1
