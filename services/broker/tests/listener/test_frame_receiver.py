"""Bytes to frames: any cut of the stream, hostile lengths, admission."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.listener.frame_receiver import FIRST_BUFFER_BYTES, FrameReceiver


class Client:
    """Feeds a receiver as the loop does: into its own buffer when it has one, else through a scratch."""

    def __init__(
        self, *, admitted: int = 1 << 62, scratch: int = 64, control_bytes_max: int = 1 << 24
    ) -> None:
        self.frames: list[bytes] = []
        self.refused: list[int] = []
        self.budget = admitted
        self.scratch = scratch
        self.shared = memoryview(bytearray(b"\xee" * scratch))
        self.receiver = FrameReceiver(
            self._admit, frame_bytes_max=1 << 24, control_bytes_max=control_bytes_max
        )

    def _admit(self, length: int) -> bool:
        if length > self.budget:
            self.refused.append(length)
            return False
        self.budget -= length
        return True

    def send(self, data: bytes) -> bytes:
        """Return the bytes that were not passed in because the receiver is blocked."""
        while data and not self.receiver.blocked and self.receiver.failure is None:
            own = self.receiver.own_buffer()
            buffer = self.shared if own is None else own
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            frames = (
                self.receiver.received(self.shared, count)
                if own is None
                else self.receiver.received_own(count)
            )
            self.frames.extend(map(bytes, frames))
        return data


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 200))
def test_any_cut_of_the_stream_gives_the_same_frames(frames: list[bytes], cut: int) -> None:
    client = Client(scratch=cut)
    client.send(framed(*frames))
    assert client.frames == frames
    assert not client.receiver.is_mid_frame


def test_a_large_frame_takes_memory_as_its_bytes_arrive() -> None:
    client = Client(scratch=1 << 16)
    frame = bytes(range(256)) * (20 << 10)  # 5 MiB
    client.send(len(frame).to_bytes(4, "big") + frame[:10])
    own = client.receiver.own_buffer()
    assert own is not None
    assert len(own) <= FIRST_BUFFER_BYTES
    client.send(frame[10:])
    assert client.frames == [frame]


@pytest.mark.parametrize("length", [-1, 0, (1 << 24) + 1, -(1 << 31), (1 << 31) - 1])
def test_hostile_lengths_are_refused_before_memory_is_taken(length: int) -> None:
    client = Client()
    client.send(framed(b"good") + length.to_bytes(4, "big", signed=True) + b"xxxx")
    assert str(abs(length)) in str(client.receiver.failure)
    assert client.frames == [b"good"]
    assert not client.refused
    assert client.receiver.own_buffer() is None


@pytest.mark.parametrize("scratch", [5, 6, 1 << 16])
def test_only_a_produce_may_be_large(scratch: int) -> None:
    produce, fetch = b"\x00\x00" + b"p" * 999, b"\x00\x01" + b"f" * 999
    client = Client(scratch=scratch, control_bytes_max=1000)
    client.send(framed(produce, fetch[:1000], produce, fetch))
    assert client.frames == [produce, fetch[:1000], produce]
    assert "control_request_bytes_max is 1000" in str(client.receiver.failure)


def test_a_complete_frame_needs_no_admission() -> None:
    client = Client(admitted=0, scratch=1 << 16)
    left = client.send(framed(b"one", b"two") + framed(b"three")[:-1])
    assert (client.frames, client.refused, left) == ([b"one", b"two"], [5], b"")


def test_a_frame_never_contains_bytes_of_another_connection() -> None:
    client = Client(scratch=1 << 12)
    client.send(framed(b"s" * 4000)[:10])
    assert client.frames == []
    client.send(b"t" * 3994)
    assert client.frames == [b"s" * 6 + b"t" * 3994]


@given(
    st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=6),
    st.integers(1, 60),
    st.integers(1, 100),
)
def test_a_frame_that_is_not_admitted_waits_and_loses_no_bytes(
    frames: list[bytes], room: int, cut: int
) -> None:
    client = Client(admitted=room, scratch=cut)
    left = client.send(framed(*frames))
    while client.receiver.blocked:
        assert client.refused
        client.receiver.resume()  # another connection released its bytes
        client.budget = room
        left = client.send(left)
    assert client.frames == frames
