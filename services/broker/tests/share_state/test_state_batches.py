"""The merge of state batches is equal to a merge offset by offset."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.coordination.share_persister import DeliveryState, StateBatch
from ponor_broker.share_state.batches import merged

from services.broker.tests.share_kit import OffsetStates

OFFSET_MAX = 40
STATES = [DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED]
BATCHES = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, OFFSET_MAX),
        st.integers(0, 12),
        st.sampled_from(STATES),
        st.integers(0, 3),
    ),
    max_size=8,
)
WRITES = st.lists(st.tuples(BATCHES, st.integers(-1, OFFSET_MAX)), max_size=6)


@given(WRITES)
def test_writes_in_order(writes: list[tuple[list[StateBatch], int]]) -> None:
    model = OffsetStates(1, -1)
    held: tuple[StateBatch, ...] = ()
    for batches, start_offset in writes:
        model.merge(start_offset, -1, batches)
        held = merged(held, batches, model.start_offset)
        assert list(held) == model.batches()
        assert all(one.last_offset < following.first_offset for one, following in pairwise(held))


@given(BATCHES, BATCHES, st.integers(-1, OFFSET_MAX))
def test_the_order_of_writes_does_not_matter(
    one: list[StateBatch], other: list[StateBatch], start_offset: int
) -> None:
    first = merged(merged((), one, start_offset), other, start_offset)
    assert first == merged(merged((), other, start_offset), one, start_offset)
    assert first == merged(first, one, start_offset), "a repeated write changes nothing"


def test_a_state_with_the_most_batches() -> None:
    held = merged((), [StateBatch(at, at, STATES[at % 3], 1) for at in range(10_000)], -1)
    assert len(held) == 10_000
    assert len(merged(held, [StateBatch(0, 9_999, DeliveryState.ARCHIVED, 2)], -1)) == 1
    assert merged(held, [], 5_000)[0] == StateBatch(5_000, 5_000, STATES[5_000 % 3], 1)
