"""A stream of bytes becomes the frames that were sent, however it is cut up."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.frames import EAGER_BYTES_MAX, FrameDecoder

BOUND = 1 << 22


def framed(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(
    frames=st.lists(st.binary(max_size=40), max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=30), min_size=1, max_size=30),
)
def test_frames_survive_every_way_of_cutting_the_stream(frames: list[bytes], cuts: list[int]) -> None:
    stream = framed(frames)
    decoder = FrameDecoder(BOUND)
    seen: list[bytearray] = []
    pos = turn = 0
    while pos < len(stream):
        size = cuts[turn % len(cuts)]
        seen += decoder.feed(stream[pos : pos + size])
        pos += size
        turn += 1

    assert [bytes(frame) for frame in seen] == frames
    assert decoder.buffered_bytes == 0


def test_every_frame_owns_its_bytes() -> None:
    scratch = bytearray(framed([b"first", b"second"]))
    frames = FrameDecoder(BOUND).feed(memoryview(scratch))
    scratch[:] = bytes(len(scratch))

    assert [bytes(frame) for frame in frames] == [b"first", b"second"]
    frames[0] += b"may grow: nothing else holds it"


def test_a_large_frame_is_received_in_place() -> None:
    payload = random.Random(1).randbytes(3 * EAGER_BYTES_MAX + 17)
    stream = framed([payload]) + framed([b"next"])
    decoder = FrameDecoder(BOUND)
    assert decoder.unfilled() is None
    assert decoder.feed(stream[:1000]) == []
    pos = 1000
    frame = None
    while frame is None:
        room = decoder.unfilled()
        assert room is not None
        count = min(len(room), 100_000, 4 + len(payload) - pos)
        room[:count] = stream[pos : pos + count]
        room.release()
        pos += count
        frame = decoder.filled(count)

    assert frame == payload
    assert decoder.unfilled() is None
    assert decoder.feed(stream[pos:]) == [b"next"]


def test_scratch_and_in_place_reception_may_alternate() -> None:
    payload = bytes(range(256)) * 8
    stream = framed([payload])
    decoder = FrameDecoder(BOUND)
    decoder.feed(stream[:100])
    room = decoder.unfilled()
    assert room is not None
    room[:50] = stream[100:150]
    assert decoder.filled(50) is None
    assert decoder.feed(stream[150:]) == [payload]


def test_an_empty_frame_is_a_frame() -> None:
    assert FrameDecoder(BOUND).feed(framed([b"", b"x"])) == [b"", b"x"]


@pytest.mark.parametrize("length", [-1, -(2**31), BOUND + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_a_wire_error(length: int) -> None:
    with pytest.raises(KafkaWireError, match=str(length)):
        FrameDecoder(BOUND).feed(length.to_bytes(4, "big", signed=True))


def test_a_length_of_exactly_the_bound_is_allowed() -> None:
    assert FrameDecoder(4).feed(framed([b"1234"])) == [b"1234"]


def test_claiming_a_large_frame_costs_only_what_really_arrives() -> None:
    decoder = FrameDecoder(104_857_600)
    tracemalloc.start()
    try:
        decoder.feed((104_857_600).to_bytes(4, "big") + b"only this")
        assert tracemalloc.get_traced_memory()[1] < 2 * EAGER_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes <= EAGER_BYTES_MAX
