"""A leader's record of a follower's log never moves back because of old answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_raft.follower_progress import FollowerProgress, ProgressState
from ponor_raft.limits import RaftLimits

LIMITS = RaftLimits(inflight_messages_max=3, inflight_bytes_max=100, append_bytes_max=50)
LAST = 20
STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4), st.integers(0, 60)),
    st.tuples(st.just("acknowledge"), st.integers(0, LAST), st.just(0)),
    st.tuples(st.just("refuse"), st.integers(0, LAST), st.integers(0, LAST)),
    st.tuples(st.sampled_from(["probe", "snapshot"]), st.just(0), st.just(0)),
)


@given(steps=st.lists(STEP, max_size=40))
def test_match_never_goes_back(steps: list[tuple[str, int, int]]) -> None:
    progress = FollowerProgress(LAST + 1)
    for what, first, second in steps:
        before = progress.match_index
        if (
            what == "send"
            and progress.state is ProgressState.REPLICATE
            and not progress.is_window_full(LIMITS)
        ):
            if progress.next_index + first - 1 <= LAST:
                progress.sent(progress.next_index + first - 1, second)
        elif what == "acknowledge":
            news = progress.acknowledged(first)
            assert news == (first > before)
            if progress.state is ProgressState.PROBE:
                progress.replicate()
        elif what == "refuse":
            if progress.refused(first, second):
                assert progress.state is ProgressState.PROBE
                assert progress.next_index <= max(first, progress.match_index + 1)
        elif what == "probe":
            progress.probe()
        elif what == "snapshot":
            progress.need_snapshot()
        assert progress.match_index >= before
        progress.validate(LAST, LIMITS)


def test_the_window_is_limited_by_messages_and_by_bytes() -> None:
    progress = FollowerProgress(1)
    progress.replicate()
    for index in range(1, 4):
        assert not progress.is_window_full(LIMITS)
        progress.sent(index, 1)
    assert progress.is_window_full(LIMITS)
    progress.acknowledged(2)
    assert not progress.is_window_full(LIMITS)
    progress.sent(4, 100)
    assert progress.is_window_full(LIMITS)
    progress.acknowledged(4)
    assert (len(progress._in_flight), progress.in_flight_bytes) == (0, 0)


def test_a_refusal_of_what_was_acknowledged_is_ignored() -> None:
    """It is an old message, or the follower lost data: retrying immediately would loop."""
    progress = FollowerProgress(6)
    progress.acknowledged(5)
    progress.probe()
    assert not progress.refused(5, 3)
    assert progress.next_index == 6
