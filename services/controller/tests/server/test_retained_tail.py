"""The retained part of the log that is served to subscribers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor_controller.server.subscriptions.retained_tail import BatchFrame, RetainedBatch, RetainedTail


def _digest(index: int) -> bytes:
    return index.to_bytes(16, "big")


def _tail(
    count: int, size: int = 100, bytes_max: int = 10_000, batches_max: int = 1_000, begin: int = 0
) -> RetainedTail:
    tail = RetainedTail(begin, _digest(begin), bytes_max=bytes_max, batches_max=batches_max)
    for index in range(begin + 1, begin + count + 1):
        tail.append(RetainedBatch(index, bytes([index % 256]) * size, _digest(index)))
    return tail


def _frame(tail: RetainedTail, after: int) -> BatchFrame:
    frame = tail.frame_after(after)
    assert frame is not None
    return frame


def test_a_subscriber_gets_every_batch_once_with_the_digest_after_the_last() -> None:
    tail = _tail(7)
    frame = tail.frame_after(3)
    assert frame is not None
    batches = wire.SubscribeResponse.FromString(frame.data).batches
    assert [each[0] for each in batches.batches] == [4, 5, 6, 7]
    assert (frame.last_index, batches.digest) == (7, _digest(7))
    assert tail.frame_after(7) is None


def test_subscribers_at_the_same_index_get_the_same_bytes() -> None:
    tail = _tail(7)
    assert _frame(tail, 3).data is _frame(tail, 3).data


def test_a_frame_is_limited_and_a_large_batch_has_its_own() -> None:
    tail = _tail(5, size=700_000, bytes_max=10_000_000)
    assert _frame(tail, 0).last_index == 1
    big = _tail(1, size=3_000_000, bytes_max=10_000_000)
    assert _frame(big, 0).last_index == 1


def test_a_subscriber_behind_the_tail_is_refused() -> None:
    tail = _tail(200, size=100, bytes_max=1_000)
    assert (tail.begin_index, tail.last_index, tail.size_bytes) == (190, 200, 1_000)
    assert tail.frame_after(190) is not None
    with pytest.raises(LookupError, match="191"):
        tail.frame_after(189)
    assert tail.digest_at(189) is None
    assert tail.digest_at(190) == _digest(190)
    assert tail.digest_at(201) is None


@given(
    count=st.integers(0, 60), batches_max=st.integers(1, 20), begin=st.integers(0, 5), grow=st.integers(0, 30)
)
def test_following_the_tail_returns_consecutive_batches(
    count: int, batches_max: int, begin: int, grow: int
) -> None:
    tail = _tail(count, batches_max=batches_max, begin=begin)
    at = tail.begin_index
    seen: list[int] = []
    for index in range(begin + count + 1, begin + count + grow + 1):
        while (frame := tail.frame_after(at)) is not None:
            response = wire.SubscribeResponse.FromString(frame.data)
            seen.extend(each[0] for each in response.batches.batches)
            assert response.batches.digest == _digest(frame.last_index)
            at = frame.last_index
        tail.append(RetainedBatch(index, bytes([index]) * 10, _digest(index)))
    first = begin + count - min(count, batches_max) + 1
    assert seen == list(range(first, at + 1))
