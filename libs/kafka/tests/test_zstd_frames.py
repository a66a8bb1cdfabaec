"""Size bounds from zstd block headers, compared with the decompressed size."""

from __future__ import annotations

import zstandard
from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.zstd_frames import BLOCK_BYTES_MAX, BLOCKS_MAX, OutputBounds, output_bounds

ENOUGH = 64 << 20
CONTENT = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda byte, times: bytes([byte]) * times, st.integers(0, 255), st.integers(0, 400_000)),
    ),
    max_size=6,
).map(b"".join)
SKIPPABLE = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"


@given(CONTENT, st.booleans(), st.booleans(), st.integers(1, 9))
def test_bounds_hold_for_every_frame(content: bytes, sized: bool, summed: bool, level: int) -> None:
    made = zstandard.ZstdCompressor(level=level, write_content_size=sized, write_checksum=summed)
    data = made.compress(content)
    bounds = output_bounds(data, ENOUGH)
    assert bounds.at_most is not None
    assert bounds.at_least <= len(content) <= bounds.at_most
    assert bounds.at_most - bounds.at_least <= len(content) + BLOCK_BYTES_MAX
    twice = output_bounds(SKIPPABLE + data + SKIPPABLE + data, ENOUGH)
    assert twice == OutputBounds(2 * bounds.at_least, 2 * bounds.at_most)


@given(CONTENT, st.data())
def test_truncated_frame_has_no_upper_bound_or_keeps_it(content: bytes, draw: st.DataObject) -> None:
    data = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    part = data[: draw.draw(st.integers(0, len(data) - 1))]
    bounds = output_bounds(part, ENOUGH)
    assert bounds.at_least <= len(content)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_do_not_raise(data: bytes) -> None:
    for prefix in (b"", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x00\x38"):
        bounds = output_bounds(prefix + data, ENOUGH)
        assert bounds.at_most is None or bounds.at_least <= bounds.at_most


def test_endless_repeated_bytes_are_detected_after_a_few_blocks() -> None:
    block = ((BLOCK_BYTES_MAX << 3) | (1 << 1)).to_bytes(3, "little") + b"\0"
    bomb = b"\x28\xb5\x2f\xfd\x00\x38" + block * 262_144
    bounds = output_bounds(bomb, ENOUGH)
    assert ENOUGH < bounds.at_least <= ENOUGH + BLOCK_BYTES_MAX


def test_number_of_examined_blocks_is_bounded() -> None:
    block = ((1 << 3) | (1 << 1)).to_bytes(3, "little") + b"\0"
    assert output_bounds(b"\x28\xb5\x2f\xfd\x00\x38" + block * 262_144, ENOUGH) == OutputBounds(
        BLOCKS_MAX + 1, None
    )
