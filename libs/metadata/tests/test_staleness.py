"""Staleness of an image, from probes and their answers."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from ponor_metadata.client.staleness import CLAIMS_MAX, Staleness


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def test_staleness_counts_from_the_probe() -> None:
    clock = HandClock()
    staleness = Staleness(clock, 100)
    staleness.connected()
    assert staleness.staleness_ms is None
    probe = staleness.next_probe()
    assert probe == 1
    clock.now_ms = 30
    staleness.claimed(probe, 5, 0)
    staleness.reached(4)
    assert staleness.staleness_ms is None, "the image has not reached the answer's index"
    clock.now_ms = 50
    staleness.reached(5)
    assert staleness.staleness_ms == 50


def test_answers_to_other_probes_are_ignored() -> None:
    clock = HandClock()
    staleness = Staleness(clock, 100)
    staleness.connected()
    first = staleness.next_probe()
    staleness.connected()  # the answer to the first one is lost with its connection
    clock.now_ms = 500
    second = staleness.next_probe()
    staleness.claimed(first, 0, 0)
    staleness.claimed(0, 0, 0)
    staleness.reached(0)
    assert staleness.staleness_ms is None
    staleness.claimed(second, 0, 0)
    staleness.claimed(second, 0, 0)
    staleness.reached(0)
    assert staleness.staleness_ms == 0


def test_the_controllers_own_staleness_is_added() -> None:
    clock = HandClock()
    staleness = Staleness(clock, 100)
    staleness.connected()
    clock.now_ms = 1_000
    staleness.claimed(staleness.next_probe(), 3, 400)
    staleness.reached(3)
    assert staleness.staleness_ms == 400


def test_a_staler_controller_does_not_raise_the_staleness() -> None:
    clock = HandClock()
    staleness = Staleness(clock, 100)
    staleness.connected()
    clock.now_ms = 1_000
    staleness.claimed(staleness.next_probe(), 3, 0)
    staleness.reached(3)
    clock.now_ms = 1_200
    staleness.claimed(staleness.next_probe(), 2, 900)
    staleness.reached(3)
    assert staleness.staleness_ms == 200


def test_probes_are_sent_one_at_a_time_at_the_interval() -> None:
    clock = HandClock()
    staleness = Staleness(clock, 100)
    staleness.connected()
    probe = staleness.next_probe()
    clock.now_ms = 500
    assert staleness.next_probe() == 0
    staleness.claimed(probe, 0, 0)
    assert staleness.next_probe() == probe + 1
    staleness.claimed(probe + 1, 0, 0)
    clock.now_ms = 599
    assert staleness.next_probe() == 0
    clock.now_ms = 600
    assert staleness.next_probe() == probe + 2


@example([(0, 0, 0, 0), (0, 1, 1, 0)])
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(0, 40), st.integers(0, 900)),
        min_size=1,
        max_size=3 * CLAIMS_MAX,
    )
)
def test_the_image_is_never_reported_as_more_current_than_it_is(
    steps: list[tuple[int, int, int, int]],
) -> None:
    """Each step: time passes, indices are committed, a lagging controller answers a probe, the image reaches
    an index.
    """
    clock = HandClock()
    staleness = Staleness(clock, 100)
    staleness.connected()
    committed_at_ms = [0]
    image = 0
    for pause_ms, commits, behind, age_ms in steps:
        committed_at_ms += [clock.now_ms] * commits
        known_at_ms = clock.now_ms - age_ms
        clock.now_ms += pause_ms
        newest = len(committed_at_ms) - 1
        probe = staleness.next_probe()
        if probe:
            known = max(index for index, at in enumerate(committed_at_ms) if at <= max(known_at_ms, 0))
            staleness.claimed(probe, known, clock.now_ms - known_at_ms)
        image = max(image, newest - behind)
        staleness.reached(image)
        if staleness.staleness_ms is not None:
            moment = clock.now_ms - staleness.staleness_ms
            # An index that was committed in the same millisecond may have followed the probe.
            assert image >= max([index for index, at in enumerate(committed_at_ms) if at < moment], default=0)
