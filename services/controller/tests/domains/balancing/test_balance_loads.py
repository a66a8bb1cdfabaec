"""Reported loads: smoothed, limited, expired, and neither lost nor duplicated by a move."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.balancing.loads import LoadBook, PartitionKey, Traffic
from ponor_controller.settings import BalanceSettings
from ponor_runtime.identity import NodeId

A, B = NodeId(1), NodeId(2)
TOPIC = bytes(range(16))
SECOND = 1_000_000_000


class Desk:
    """A load book with a clock, and the leaders of partitions."""

    def __init__(self, settings: BalanceSettings | None = None) -> None:
        self.book = LoadBook(settings or BalanceSettings())
        self.now_ns = 100 * SECOND
        self.leaders: dict[PartitionKey, NodeId] = {}

    def leader_of(self, key: PartitionKey) -> NodeId | None:
        return self.leaders.get(key)

    def report(
        self, node_id: NodeId, named: dict[int, int], total: int | None = None, cpu_permille: int = 0
    ) -> None:
        """Report a second later: bytes in per second, per partition and in total."""
        self.now_ns += SECOND
        report = wire.LoadReport(
            window_ms=1_000,
            in_bytes_per_s=sum(named.values()) if total is None else total,
            cpu_permille=cpu_permille,
        )
        for partition, rate in named.items():
            report.partitions.add(topic_id=TOPIC, partition=partition, in_bytes_per_s=rate)
        self.book.add_report(node_id, report, self.leader_of, self.now_ns)

    def decay(self, seconds: int = 0, live: frozenset[NodeId] = frozenset((A, B))) -> None:
        self.now_ns += seconds * SECOND
        self.book.decay(live, self.leader_of, self.now_ns)

    def rate(self, partition: int) -> float:
        return dict(self.book.partitions()).get((TOPIC, partition), Traffic(0, 0)).in_bytes_per_s

    def rest(self, node_id: NodeId) -> float:
        load = self.book.broker(node_id)
        assert load is not None
        return load.rest.in_bytes_per_s


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.leaders = {(TOPIC, partition): A for partition in range(10)}
    return desk


def test_the_first_report_counts_fully_and_later_ones_are_smoothed(desk: Desk) -> None:
    desk.report(A, {0: 1_000, 1: 500}, total=2_000, cpu_permille=400)
    assert desk.rate(0) == 1_000
    assert desk.rest(A) == 500
    desk.report(A, {0: 2_000, 1: 500}, total=3_000, cpu_permille=400)
    assert 1_100 < desk.rate(0) < 1_300, "one second of five: a fifth of the difference"
    for _ in range(30):
        desk.report(A, {0: 2_000, 1: 500}, total=3_000, cpu_permille=900)
    assert desk.rate(0) == pytest.approx(2_000, rel=0.01)
    load = desk.book.broker(A)
    assert load is not None
    assert load.cpu == pytest.approx(0.9, rel=0.01)


def test_the_load_of_an_unreported_partition_fades_and_is_dropped(desk: Desk) -> None:
    desk.report(A, {0: 1_000_000, 1: 500})
    desk.report(A, {1: 500})
    assert 0 < desk.rate(0) < 1_000_000
    for _ in range(100):
        desk.report(A, {1: 500})
    assert [key for key, _ in desk.book.partitions()] == [(TOPIC, 1)]


def test_an_empty_last_report_lets_all_loads_fade(desk: Desk) -> None:
    desk.report(A, {0: 1_000_000}, total=3_000_000)
    desk.report(A, {}, total=0)
    assert desk.rate(0) > 500_000, "a pause of a second ends nothing"
    for _ in range(60):
        desk.decay(2)
    assert desk.rate(0) == 0
    assert desk.rest(A) == 0
    version = desk.book.version
    desk.decay(2)
    assert desk.book.version == version, "nothing changes anymore"


def test_a_load_moves_with_its_partition(desk: Desk) -> None:
    desk.report(A, {0: 1_000_000, 1: 500})
    desk.leaders[TOPIC, 0] = B
    desk.report(A, {0: 300_000, 1: 500})  # the window began before the move
    assert desk.rate(0) == 1_000_000
    desk.report(A, {1: 500})
    assert desk.rate(0) == 1_000_000, "the new leader has not reported yet"
    assert desk.rest(A) == 0, "the old leader has no load of it"
    desk.report(B, {0: 900_000})
    assert 900_000 < desk.rate(0) < 1_000_000
    desk.report(B, {})
    assert desk.rate(0) < 900_000


def test_a_load_that_the_new_leader_never_reports_is_dropped(desk: Desk) -> None:
    desk.report(A, {0: 1_000_000})
    desk.leaders[TOPIC, 0] = B
    desk.decay(14)
    assert desk.rate(0) == 1_000_000
    desk.decay(2)
    assert desk.rate(0) == 0


def test_reports_about_foreign_or_unknown_partitions_are_ignored(desk: Desk) -> None:
    desk.report(B, {0: 1_000, 77: 1_000})
    assert not list(desk.book.partitions())
    desk.report(A, {0: 1_000})
    del desk.leaders[TOPIC, 0]
    desk.report(A, {})
    assert not list(desk.book.partitions()), "its topic was deleted"


def test_invalid_rates_count_as_none_and_immediate_repeats_as_one_report(desk: Desk) -> None:
    desk.report(A, {0: -5}, total=-7, cpu_permille=-1)
    assert desk.rate(0) == 0
    assert desk.rest(A) == 0
    before = desk.book.version
    desk.book.add_report(A, wire.LoadReport(in_bytes_per_s=10**9), desk.leader_of, desk.now_ns + 1_000)
    assert desk.book.version == before


def test_a_report_is_read_up_to_its_limit_and_the_rest_counts_in_its_totals() -> None:
    desk = Desk(BalanceSettings(balance_reported_partitions_max=3))
    desk.leaders = {(TOPIC, partition): A for partition in range(10)}
    desk.report(A, dict.fromkeys(range(10), 100))
    assert len(list(desk.book.partitions())) == 3
    assert desk.rest(A) == 700


def test_departed_brokers_are_dropped_and_a_new_term_starts_empty(desk: Desk) -> None:
    desk.report(A, {0: 1_000}, total=5_000)
    desk.report(B, {})
    desk.decay(live=frozenset((B,)))
    assert desk.book.broker(A) is None
    assert desk.book.broker(B) is not None
    desk.book.clear()
    assert desk.book.broker(B) is None
    assert not list(desk.book.partitions())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("report"),
                st.sampled_from([A, B]),
                st.dictionaries(st.integers(0, 5), st.integers(0, 10**9)),
                st.integers(0, 10**10),
            ),
            st.tuples(st.just("move"), st.sampled_from([A, B]), st.integers(0, 5), st.none()),
            st.tuples(st.just("settle"), st.sampled_from([A, B]), st.integers(0, 30), st.none()),
        ),
        max_size=40,
    )
)
def test_rates_stay_within_the_reported_range_and_count_once(
    steps: list[tuple[str, NodeId, object, int | None]],
) -> None:
    desk = Desk()
    highest: dict[int, int] = {}
    for kind, node_id, what, total in steps:
        if kind == "report":
            assert isinstance(what, dict)
            desk.report(node_id, what, total)
            for partition, rate in what.items():
                highest[partition] = max(highest.get(partition, 0), rate)
        elif kind == "move":
            assert isinstance(what, int)
            desk.leaders[TOPIC, what] = node_id
        else:
            assert isinstance(what, int)
            desk.decay(what)
        for (_, partition), traffic in desk.book.partitions():
            assert 0 <= traffic.in_bytes_per_s <= highest[partition]
        named = [key for each in desk.book._named_by.values() for key in each]
        assert sorted(named) == sorted(desk.book._partitions)
