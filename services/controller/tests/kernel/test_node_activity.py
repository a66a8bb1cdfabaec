"""Suspicion of silent nodes, and its exceptions."""

from __future__ import annotations

from ponor_controller.kernel.node_activity import RESTARTS_MAX, NodeActivity
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id

A, B, C = (compose_node_id(ClusterOrdinal(1), number) for number in range(3))


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def _activity() -> tuple[NodeActivity, HandClock]:
    clock = HandClock()
    return NodeActivity(clock, session_timeout_ms=9_000, reset_grace_ms=1_000), clock


def _settled() -> tuple[NodeActivity, HandClock]:
    """Three nodes, long after the election."""
    activity, clock = _activity()
    clock.now_ms += 20_000
    for node_id in (A, B, C):
        activity.heard(node_id)
    return activity, clock


def _pass(activity: NodeActivity, clock: HandClock, ms: int, *, speaking: list[NodeId]) -> None:
    """Let time pass in which some nodes send something every second, including the end."""
    end_ms = clock.now_ms + ms
    while clock.now_ms < end_ms:
        clock.now_ms = min(clock.now_ms + 1_000, end_ms)
        for node_id in speaking:
            activity.heard(node_id)


def test_silence_for_the_session_timeout_is_suspicious() -> None:
    activity, clock = _settled()
    _pass(activity, clock, 9_000, speaking=[B, C])
    assert not activity.is_suspected(A)
    clock.now_ms += 1
    assert activity.is_suspected(A)
    activity.heard(A)
    assert not activity.is_suspected(A)


def test_a_node_that_was_never_heard_counts_from_the_beginning() -> None:
    activity, clock = _activity()
    assert not activity.is_suspected(A)
    clock.now_ms += 18_000
    assert not activity.is_suspected(A), "one timeout to detect the old leader's end, one to find this one"
    clock.now_ms += 1
    assert activity.is_suspected(A)


def test_a_broken_session_is_suspicious_soon_unless_the_node_reconnects() -> None:
    activity, clock = _settled()
    activity.left(A)
    activity.left(B)
    activity.heard(B)
    clock.now_ms += 1_001
    assert activity.is_suspected(A)
    assert not activity.is_suspected(B)
    assert not activity.is_suspected(C)


def test_a_new_leader_gives_every_node_a_full_timeout() -> None:
    activity, clock = _settled()
    clock.now_ms += 18_001
    assert activity.is_suspected(A)
    activity.restart()
    assert not activity.is_suspected(A)
    activity.heard(A)
    activity.left(A)  # a reset right after an election has no meaning for the node
    clock.now_ms += 8_000
    assert not activity.is_suspected(A)
    clock.now_ms += 1_001
    assert activity.is_suspected(A)


def test_sessions_broken_together_are_a_fault_of_the_leader() -> None:
    activity, clock = _settled()
    activity.left(A)
    activity.left(B)
    clock.now_ms += 2_000
    activity.heard(C)
    assert not activity.is_suspected(A)
    assert not activity.is_suspected(B)
    clock.now_ms += 7_001  # the ceiling
    assert activity.is_suspected(A)
    assert activity.is_suspected(B)
    assert not activity.is_suspected(C)


def test_long_absent_nodes_do_not_count_as_broken_together() -> None:
    activity, clock = _settled()
    activity.left(A)
    _pass(activity, clock, 9_001, speaking=[B, C])
    clock.now_ms += 10
    activity.left(B)
    clock.now_ms += 1_001
    assert activity.is_suspected(A)
    assert activity.is_suspected(B), "half of the two that were there is not most of them"
    activity.left(C)
    assert not activity.is_suspected(B), "now both are disconnected"


def test_it_returns_the_time_of_the_next_suspicion_and_the_departed() -> None:
    activity, clock = _settled()
    lefts: list[int] = []
    activity.on_left(lambda: lefts.append(clock.now_ms))
    assert activity.suspected_in_s(A) == 9.001
    clock.now_ms += 4_000
    assert activity.suspected_in_s(A) == 5.001
    activity.heard(B)
    activity.heard(C)
    activity.left(A)
    assert (activity.suspected_in_s(A), len(lefts)) == (1.001, 1)
    clock.now_ms += 1_001
    assert activity.is_suspected(A)
    assert activity.suspected_in_s(A) is None
    activity.heard(A)
    assert activity.suspected_in_s(A) == 9.001


def test_with_too_many_broken_sessions_only_silence_counts() -> None:
    activity, clock = _settled()
    activity.left(A)
    activity.left(B)
    clock.now_ms += 2_000
    assert not activity.is_suspected(A)
    assert activity.suspected_in_s(A) == 7.001
    clock.now_ms += 7_001
    assert activity.suspected_in_s(A) is None


def test_a_young_leader_gives_every_node_a_full_timeout() -> None:
    activity, clock = _activity()
    clock.now_ms += 2_000
    activity.heard(A)
    activity.left(A)
    assert activity.grace_left_s() == 16
    assert activity.suspected_in_s(A) == 9.001
    clock.now_ms += 16_001
    assert activity.grace_left_s() == 0
    activity.restart()
    assert activity.grace_left_s() == 18


def test_the_reason_of_a_suspicion_is_described() -> None:
    activity, clock = _settled()
    activity.left(A)
    assert activity.is_away(A)
    assert not activity.is_away(B)
    clock.now_ms += 1_200
    assert activity.reason(A) == "its session broke 1200 ms ago, and it has not reconnected"
    clock.now_ms += 9_000
    assert activity.reason(A) == activity.reason(B) == "it has been silent for 10200 ms"
    activity.heard(A)
    assert not activity.is_away(A)
    activity.restart()
    clock.now_ms += 19_000
    assert activity.reason(A) == "it has been silent for 19000 ms, since this controller became leader"


def test_certainly_departed_nodes_are_no_evidence_against_the_leader() -> None:
    activity, clock = _settled()
    activity.left(A)
    clock.now_ms += 1_001
    assert activity.is_suspected(A)
    activity.left(B)
    clock.now_ms += 1_001
    assert not activity.is_suspected(B), "two of three at once"
    activity.ignore(A)
    assert activity.is_suspected(B)
    assert activity.is_suspected(A)
    activity.ignore(C)
    assert not activity.is_suspected(C), "it is heard"


def test_nodes_that_fall_silent_together_get_a_second_timeout() -> None:
    activity, clock = _settled()
    _pass(activity, clock, 9_001, speaking=[C])
    assert not activity.is_suspected(A), "two of three"
    assert activity.suspected_in_s(A) == 2.251, (
        "a quarter of the timeout: C may fall silent too, or A come back"
    )
    _pass(activity, clock, 8_999, speaking=[C])
    assert not activity.is_suspected(B)
    _pass(activity, clock, 1, speaking=[C])
    assert activity.is_suspected(A)
    assert activity.is_suspected(B)


def test_a_node_that_returns_from_a_common_silence_shows_that_the_link_was_the_cause() -> None:
    activity, clock = _settled()
    _pass(activity, clock, 30_000, speaking=[])
    assert activity.is_suspected(B)
    activity.heard(A)
    assert not activity.is_suspected(B), "the link works again, and B had no time yet"
    _pass(activity, clock, 9_000, speaking=[A, C])
    assert not activity.is_suspected(B)
    _pass(activity, clock, 1, speaking=[A, C])
    assert activity.is_suspected(B), "only this node is silent"


def test_nodes_whose_sessions_broke_before_get_no_second_timeout() -> None:
    activity, clock = _settled()
    activity.left(A)
    activity.left(B)
    _pass(activity, clock, 9_001, speaking=[C])
    assert activity.is_suspected(A)
    assert activity.is_suspected(B)


def test_one_silent_node_of_two_is_suspected_after_one_timeout() -> None:
    activity, clock = _settled()
    activity.left(C)
    clock.now_ms += 1_001
    activity.ignore(C)
    _pass(activity, clock, 8_000, speaking=[B])
    assert activity.is_suspected(A)


def test_nodes_that_a_new_leader_expects_and_does_not_hear_count_as_silent_together() -> None:
    activity, clock = _activity()
    activity.restart([A, B, C])
    _pass(activity, clock, 18_001, speaking=[C])
    assert not activity.is_suspected(A), "two of three did not find this leader: perhaps they cannot"
    _pass(activity, clock, 9_000, speaking=[C])
    assert activity.is_suspected(A)


def test_an_absence_of_half_a_timeout_gives_every_node_a_full_one() -> None:
    activity, clock = _settled()
    activity.left(A)
    clock.now_ms += 900  # the clock itself discounts observed time
    activity.observer_was_absent(4_400_000_000)
    clock.now_ms += 101
    assert activity.is_suspected(A), "sessions outlive a short absence"
    activity.heard(A)
    activity.left(A)
    activity.observer_was_absent(4_500_000_000)
    clock.now_ms += 8_999
    assert not activity.is_suspected(A)
    assert not activity.is_suspected(B)
    assert activity.grace_left_s() == 0.001
    clock.now_ms += 2
    assert activity.is_suspected(A) is activity.is_suspected(B)
    clock.now_ms += 9_000
    assert activity.is_suspected(A)


def test_a_rarely_heard_node_does_not_hide_a_dead_one() -> None:
    activity, clock = _settled()
    for _ in range(RESTARTS_MAX):
        _pass(activity, clock, 6_000, speaking=[A])
        activity.heard(B)
        assert not activity.is_suspected(C), "perhaps the link of this controller was the cause"
    _pass(activity, clock, 6_000, speaking=[A])
    activity.heard(B)
    _pass(activity, clock, 3_001, speaking=[A])
    assert activity.is_suspected(C)
    assert not activity.is_suspected(B)


def test_a_silent_node_that_is_heard_again_gets_all_exceptions_again() -> None:
    activity, clock = _settled()
    for _ in range(3):
        for _ in range(RESTARTS_MAX):
            _pass(activity, clock, 6_000, speaking=[A])
            activity.heard(B)
        activity.heard(C)
        assert not activity.is_suspected(C)
