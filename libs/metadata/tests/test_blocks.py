"""Blocks compared with a dict: contents, order, and pictures that do not change with the map."""

from __future__ import annotations

import gc
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ponor_metadata.image.blocks import BLOCK_ROWS_MAX, Blocks, Picture, StructBlocks, TupleBlocks

KEYS = st.integers(0, 3_000)
LAYOUT = Struct("<qI")


def made(packed: bool) -> Blocks[int]:
    return StructBlocks(LAYOUT) if packed else TupleBlocks()


class BlocksMachine(RuleBasedStateMachine):
    """Runs of keys, so that blocks fill, split, empty and join."""

    @initialize(packed=st.booleans())
    def begin(self, packed: bool) -> None:
        self.blocks = made(packed)
        self.model: dict[int, tuple[int, int]] = {}
        self.pictures: list[tuple[Picture[int], dict[int, tuple[int, int]]]] = []
        self.written = 0

    @rule(first=KEYS, count=st.integers(1, 700), step=st.sampled_from([1, 1, 2, 7, -1]))
    def put(self, first: int, count: int, step: int) -> None:
        for key in range(first, max(-1, first + count * step), step):
            self.written += 1
            value = (key - self.written, self.written)
            assert self.blocks.put(key, value) == self.model.get(key)
            self.model[key] = value

    @rule(first=KEYS, count=st.integers(1, 700), step=st.sampled_from([1, 1, 2, 3]))
    def delete(self, first: int, count: int, step: int) -> None:
        for key in range(first, first + count * step, step):
            if key in self.model:
                assert self.blocks.delete(key) == self.model.pop(key)
            else:
                with pytest.raises(KeyError):
                    self.blocks.delete(key)

    @rule(count=st.integers(0, 1_500))
    def extend(self, count: int) -> None:
        first = max(self.model, default=-1) + 1
        keys, values = range(first, first + count), [(key, 5) for key in range(count)]
        self.blocks.extend(keys, values)
        self.model |= dict(zip(keys, values, strict=True))

    @rule()
    def take_picture(self) -> None:
        self.pictures.append((self.blocks.freeze(), dict(self.model)))
        del self.pictures[:-3]

    @invariant()
    def same(self) -> None:
        assert list(self.blocks.items()) == sorted(self.model.items())
        assert list(self.blocks.values()) == list(self.blocks.scan())
        assert len(self.blocks) == len(self.model)
        for key in range(0, 4_000, 97):
            assert self.blocks.get(key) == self.model.get(key)
            assert (key in self.blocks) == (key in self.model)

    @invariant()
    def pictures_do_not_move(self) -> None:
        for picture, then in self.pictures:
            assert list(picture.items()) == sorted(then.items())
            assert len(picture) == len(then)


TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@pytest.mark.parametrize("packed", [False, True])
def test_ordered_insertions_fill_blocks(packed: bool) -> None:
    blocks = made(packed)
    for key in range(BLOCK_ROWS_MAX * 4):
        blocks.put(key, (key, 1))
    assert blocks.block_sizes() == [BLOCK_ROWS_MAX] * 4


@pytest.mark.parametrize("packed", [False, True])
def test_blocks_are_joined_after_most_rows_were_deleted(packed: bool) -> None:
    blocks = made(packed)
    blocks.extend(range(BLOCK_ROWS_MAX * 40), [(key, 1) for key in range(BLOCK_ROWS_MAX * 40)])
    for key in range(BLOCK_ROWS_MAX * 40):
        if key % 20:
            blocks.delete(key)
    assert len(blocks.block_sizes()) <= 8 * 40 / 20 + 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_picture_is_drained_while_the_map_changes(packed: bool) -> None:
    blocks = made(packed)
    rows = [(key, (key, 1)) for key in range(BLOCK_ROWS_MAX * 3)]
    blocks.extend([key for key, _ in rows], [values for _, values in rows])
    picture = blocks.freeze()
    drained = picture.drain()
    first = next(drained)
    for key in range(BLOCK_ROWS_MAX * 3):
        blocks.put(key, (key, 2))
    assert [first, *drained] == rows
    assert list(picture.items()) == []
    assert list(blocks.items()) == [(key, (key, 2)) for key, _ in rows]


@pytest.mark.parametrize("packed", [False, True])
def test_a_map_is_released_block_by_block_and_can_be_filled_again(packed: bool) -> None:
    blocks = made(packed)
    blocks.extend(range(BLOCK_ROWS_MAX * 3), [(key, 1) for key in range(BLOCK_ROWS_MAX * 3)])
    assert sum(1 for _ in blocks.release()) == 3
    assert (len(blocks), list(blocks.items()), blocks.get(5)) == (0, [], None)
    blocks.put(5, (5, 1))
    assert list(blocks.items()) == [(5, (5, 1))]


def test_the_garbage_collector_does_not_track_rows() -> None:
    blocks = made(packed=False)
    for key in range(0, BLOCK_ROWS_MAX * 8, 2):
        blocks.put(key, (key, 1))
    blocks.freeze()
    for key in range(0, BLOCK_ROWS_MAX * 8, 3):
        blocks.put(key, (key, 2))
    gc.collect()  # tuples of plain values are let go of when they are seen for the first time
    tracked = {id(each) for each in gc.get_objects()}
    values = dict(blocks.items())
    assert len(values) > BLOCK_ROWS_MAX * 5
    assert not any(id(row) in tracked for row in values.values())
    lists = [each for each in gc.get_objects() if type(each) is list]
    assert not any(each[0] in values.values() for each in lists if len(each) > 100 and type(each[0]) is tuple)


@given(st.lists(st.integers(0, 100), min_size=1))
def test_rows_out_of_order_are_not_loaded(keys: list[int]) -> None:
    blocks = made(packed=True)
    blocks.put(50, (0, 0))
    values = [(key, 1) for key in keys]
    if keys == sorted(set(keys)) and keys[0] > 50:
        blocks.extend(keys, values)
        assert list(blocks.items()) == [(50, (0, 0)), *zip(keys, values, strict=True)]
    else:
        with pytest.raises(ValueError, match="sorted"):
            blocks.extend(keys, values)
