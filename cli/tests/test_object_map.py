"""Drawings of `ponor object map`."""

from __future__ import annotations

from ponor_cli.commands.object_map import HeldPiece, StreamMap, draw
from ponor_runtime.identity import ObjectId


def _map(*ends: int, start: int = 0, end: int | None = None, shared: bool = True) -> StreamMap:
    """Pieces that end at these offsets, one after the other from `start` on."""
    begins = (start, *ends)
    pieces = tuple(
        HeldPiece(ObjectId(number), begins[number], each, shared) for number, each in enumerate(ends)
    )
    return StreamMap(0, "log", start, ends[-1] if end is None else end, pieces)


def test_draw_shows_one_stream_object_as_a_bar() -> None:
    assert draw(_map(1_000, shared=False), 10) == "█" * 10


def test_draw_alternates_the_shades_of_neighbours() -> None:
    assert draw(_map(500, 1_000), 10) == "▒▒▒▒▒░░░░░"
    assert draw(_map(500, 1_000, shared=False), 10) == "█████▓▓▓▓▓"


def test_draw_counts_small_objects_in_a_cell() -> None:
    assert draw(_map(*range(10, 301, 10)), 10) == "3" * 10
    assert draw(_map(*range(1, 1_001)), 10) == "+" * 10


def test_draw_shows_a_compacted_start_and_a_fragmented_end() -> None:
    compacted = HeldPiece(ObjectId(1), 0, 800, is_shared=False)
    fresh = [HeldPiece(ObjectId(2 + n), 800 + 40 * n, 840 + 40 * n, is_shared=True) for n in range(5)]
    assert draw(StreamMap(0, "log", 0, 1_000, (compacted, *fresh)), 10) == "████████32"


def test_draw_cuts_a_piece_that_starts_before_the_stream() -> None:
    piece = HeldPiece(ObjectId(1), 0, 1_000, is_shared=False)
    assert draw(StreamMap(0, "log", 600, 1_000, (piece,)), 8) == "█" * 8


def test_draw_shows_offsets_without_an_object() -> None:
    assert draw(_map(500, end=1_000), 10) == "▒▒▒▒▒·····"
    assert draw(StreamMap(0, "log", 0, 10, ()), 10) == "·" * 10


def test_draw_gives_every_offset_of_a_short_stream_a_cell() -> None:
    assert draw(_map(3), 64) == "▒▒▒"
