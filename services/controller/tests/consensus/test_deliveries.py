"""Messages delivered in one step: limited by number and bytes, in order, complete."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from ponor_controller.consensus.deliveries import DELIVERED_AT_ONCE, DELIVERED_BYTES, next_delivery
from ponor_raft.entry import Entry

SIZES = st.lists(
    st.sampled_from([0, 1, 300, DELIVERED_BYTES // 2, DELIVERED_BYTES, 3 * DELIVERED_BYTES]), max_size=300
)


@given(SIZES)
def test_steps_are_as_large_as_the_limits_allow(sizes: list[int]) -> None:
    entries = [Entry(index, 1, bytes(size)) for index, size in enumerate(sizes, 1)]
    committed = deque(entries)
    delivered: list[Entry] = []
    while committed:
        step = next_delivery(committed)
        step_bytes = sum(len(entry.data) for entry in step)
        assert len(step) == 1 or (len(step) <= DELIVERED_AT_ONCE and step_bytes <= DELIVERED_BYTES)
        if committed:
            fuller = step_bytes + len(committed[0].data) > DELIVERED_BYTES
            assert len(step) == DELIVERED_AT_ONCE or fuller
        delivered += step
    assert delivered == entries
