"""Bytes to frames: any cut of the stream, hostile lengths, admission."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.frame_receiver import FIRST_BUFFER_BYTES, FrameReceiver
from ponor_kafka.errors import KafkaWireError


class Client:
    """Feeds a receiver as the loop does: into its own buffer when it has one, else through a scratch."""

    def __init__(self, *, admitted: int = 1 << 62, scratch: int = 64) -> None:
        self.frames: list[bytes] = []
        self.refused: list[int] = []
        self.budget = admitted
        self.scratch = scratch
        self.receiver = FrameReceiver(
            lambda frame: self.frames.append(bytes(frame)), self._admit, frame_bytes_max=1 << 24
        )

    def _admit(self, length: int) -> bool:
        if length > self.budget:
            self.refused.append(length)
            return False
        self.budget -= length
        return True

    def send(self, data: bytes) -> bytes:
        """Returns what could not be given because the receiver is blocked."""
        while data and not self.receiver.blocked:
            own = self.receiver.own_buffer()
            if own is None:
                part, data = data[: self.scratch], data[self.scratch :]
                self.receiver.received(memoryview(bytearray(part)))
            else:
                count = min(len(own), len(data), self.scratch)
                own[:count] = data[:count]
                data = data[count:]
                del own
                self.receiver.received_own(count)
        return data


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 200))
def test_any_cut_of_the_stream_gives_the_same_frames(frames: list[bytes], cut: int) -> None:
    client = Client(scratch=cut)
    client.send(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    assert client.frames == frames
    assert not client.receiver.is_mid_frame


def test_a_large_frame_takes_memory_as_its_bytes_arrive() -> None:
    client = Client(scratch=1 << 16)
    frame = bytes(range(256)) * (20 << 10)  # 5 MiB
    client.send(len(frame).to_bytes(4, "big") + frame[:10])
    own = client.receiver.own_buffer()
    assert own is not None
    assert len(own) <= FIRST_BUFFER_BYTES
    del own
    client.send(frame[10:])
    assert client.frames == [frame]


@pytest.mark.parametrize("length", [-1, 0, (1 << 24) + 1, -(1 << 31), (1 << 31) - 1])
def test_hostile_lengths_are_refused_before_memory_is_taken(length: int) -> None:
    client = Client()
    with pytest.raises(KafkaWireError, match=str(abs(length))):
        client.send(length.to_bytes(4, "big", signed=True) + b"xxxx")


@given(
    st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=6),
    st.integers(1, 60),
    st.integers(1, 100),
)
def test_a_frame_without_room_waits_and_nothing_is_lost(frames: list[bytes], room: int, cut: int) -> None:
    client = Client(admitted=room, scratch=cut)
    left = client.send(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    while client.receiver.blocked:
        assert client.refused
        client.receiver.resume()  # somebody else released
        client.budget = room
        left = client.send(left)
    assert client.frames == frames
