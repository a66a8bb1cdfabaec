"""The window of operations in flight: frames equal those of protobuf, with the assigned ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.operation_window import ENVELOPE_BYTES, OperationWindow, encoded_operation

FRAME_BYTES = 1_000


def _put(value: bytes, request_id: int = 0) -> wire.Operation:
    return wire.Operation(request_id=request_id, put_key=wire.PutKey(key="k", value=value))


def _frames(window: OperationWindow) -> list[bytes]:
    frames = []
    while (frame := window.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(st.lists(st.binary(max_size=2_000), max_size=20))
async def test_frames_contain_every_operation_once_in_order_within_their_limit(values: list[bytes]) -> None:
    window = OperationWindow(1_024, 1 << 20, FRAME_BYTES)
    for value in values:
        await window.admit(encoded_operation(_put(value)))
    frames = _frames(window)
    requests = [wire.SessionRequest.FromString(frame) for frame in frames]
    sent = [operation for request in requests for operation in request.operations.operations]
    assert sent == [_put(value, number) for number, value in enumerate(values, 1)]
    for frame, request in zip(frames, requests, strict=True):
        assert frame == request.SerializeToString(), "as protobuf writes it"
        assert len(frame) <= FRAME_BYTES or len(request.operations.operations) == 1
        assert request.operations.first_incomplete_id == 1


async def test_a_frame_has_the_first_incomplete_id() -> None:
    window = OperationWindow(1_024, 1 << 20, FRAME_BYTES)
    for _ in range(3):
        await window.admit(encoded_operation(_put(b"")))
    _frames(window)
    window.complete(1)
    window.send_all_again()
    (frame,) = _frames(window)
    batch = wire.SessionRequest.FromString(frame).operations
    assert (batch.first_incomplete_id, [each.request_id for each in batch.operations]) == (2, [2, 3])


async def test_the_request_id_of_a_caller_is_ignored() -> None:
    window = OperationWindow(1_024, 1 << 20, FRAME_BYTES)
    operation = _put(b"v", request_id=99)
    pending = await window.admit(encoded_operation(operation))
    (frame,) = _frames(window)
    assert wire.SessionRequest.FromString(frame).operations.operations == [_put(b"v", pending.request_id)]
    assert operation.request_id == 99, "the caller's own is not changed"


async def test_sizes_include_the_overhead_of_a_frame() -> None:
    window = OperationWindow(1_024, 1 << 20, FRAME_BYTES)
    encoded = encoded_operation(_put(b"v" * 100))
    pending = await window.admit(encoded)
    assert pending.size_bytes == window.size_bytes == len(encoded) + ENVELOPE_BYTES
    window.complete(pending.request_id)
    assert window.size_bytes == 0
    with pytest.raises(AssertionError, match="larger than the window"):
        await window.admit(bytes(1 << 20))
