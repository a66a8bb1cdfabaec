"""Tables of image and overlay compared with a dict: rows, order, indexes, and the state after a drop."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_metadata.image.memory_table import MemoryTable
from ponor_metadata.image.overlay import Overlay, OverlayTable
from ponor_metadata.tables.schema import Index, Schema, Table

from libs.metadata.tests.metadata_kit import Log


class Coin(NamedTuple):
    key: int
    colours: tuple[str, ...]
    weight: int


BY_COLOUR: Index[str, Coin] = Index("by_colour", lambda row: row.colours, lambda row: (row.weight, row.key))
COINS: Schema[int, Coin] = Schema("coins", Coin, lambda row: row.key, (), (BY_COLOUR,))
coins = st.builds(
    Coin, st.integers(0, 8), st.lists(st.sampled_from("rgb"), unique=True).map(tuple), st.integers(0, 5)
)
changes = st.lists(st.one_of(coins, st.integers(0, 8)), max_size=30)


def change(table: Table[int, Coin], model: dict[int, Coin], wanted: Coin | int) -> None:
    if isinstance(wanted, Coin):
        table.put(wanted)
        model[wanted.key] = wanted
    elif wanted in model:
        table.delete(wanted)
        del model[wanted]
    else:
        with pytest.raises(KeyError):
            table.delete(wanted)


def assert_same(table: Table[int, Coin], model: dict[int, Coin]) -> None:
    assert list(table) == [model[key] for key in sorted(model)]
    assert len(table) == len(model)
    for key in range(9):
        assert table.get(key) == model.get(key)
        assert (key in table) == (key in model)
    for colour in "rgb":
        expected = sorted((row for row in model.values() if colour in row.colours), key=BY_COLOUR.order)
        assert list(table.find(BY_COLOUR, colour)) == expected


@given(changes)
def test_a_table_of_the_image_equals_its_model(wanted: list[Coin | int]) -> None:
    table = MemoryTable(COINS)
    model: dict[int, Coin] = {}
    for each in wanted:
        change(table, model, each)
        assert_same(table, model)


@given(changes, changes, st.booleans())
def test_a_table_of_the_overlay_equals_its_model(
    under: list[Coin | int], over: list[Coin | int], commits: bool
) -> None:
    base = MemoryTable(COINS)
    committed: dict[int, Coin] = {}
    for each in under:
        change(base, committed, each)
    overlay = Overlay(Log().image)
    table = OverlayTable(base, overlay)
    model = dict(committed)
    for each in over:
        change(table, model, each)
        assert_same(table, model)
    assert_same(base, committed)
    if commits:
        for each in over:
            change(base, committed, each)
        assert_same(table, model)
        table.forget(overlay.index)
    else:
        table.forget(None)
    assert table.touched_rows == 0
    assert_same(table, committed)
