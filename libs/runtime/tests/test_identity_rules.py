"""Bit layout of ids that makes ids of different clusters distinct. ponor_metadata tests rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import (
    CLUSTER_ORDINAL_MAX,
    NODE_NUMBER_MAX,
    SEQUENCE_MAX,
    ClusterOrdinal,
    cluster_of_id,
    cluster_of_node,
    compose_id,
    compose_node_id,
)

ordinals = st.integers(0, CLUSTER_ORDINAL_MAX).map(ClusterOrdinal)
sequences = st.integers(0, SEQUENCE_MAX)
numbers = st.integers(0, NODE_NUMBER_MAX)


@given(ordinals, sequences)
def test_id_is_a_positive_int64_and_round_trips(ordinal: ClusterOrdinal, sequence: int) -> None:
    composed = compose_id(ordinal, sequence)
    assert 0 <= composed < 1 << 63
    assert composed.to_bytes(8, "big")[0] < 0x80, "the sign bit is never set"
    assert (cluster_of_id(composed), composed & SEQUENCE_MAX) == (ordinal, sequence)


@given(ordinals, sequences, ordinals, sequences)
def test_ids_are_equal_only_if_cluster_and_sequence_are_equal(
    ordinal: ClusterOrdinal, sequence: int, other_ordinal: ClusterOrdinal, other_sequence: int
) -> None:
    same = compose_id(ordinal, sequence) == compose_id(other_ordinal, other_sequence)
    assert same == ((ordinal, sequence) == (other_ordinal, other_sequence))


@given(ordinals, sequences, sequences)
def test_ids_of_one_cluster_sort_by_sequence(ordinal: ClusterOrdinal, sequence: int, later: int) -> None:
    assert (compose_id(ordinal, sequence) < compose_id(ordinal, later)) == (sequence < later)


@given(ordinals, numbers, ordinals, numbers)
def test_node_ids_are_below_2_to_the_30_and_unique_across_clusters(
    ordinal: ClusterOrdinal, number: int, other_ordinal: ClusterOrdinal, other_number: int
) -> None:
    node_id = compose_node_id(ordinal, number)
    assert 0 <= node_id < 1 << 30
    assert node_id == ordinal << 16 | number
    assert cluster_of_node(node_id) == ordinal
    same = node_id == compose_node_id(other_ordinal, other_number)
    assert same == ((ordinal, number) == (other_ordinal, other_number))


def test_bounds_are_exact() -> None:
    assert compose_id(ClusterOrdinal(CLUSTER_ORDINAL_MAX), SEQUENCE_MAX) == (1 << 63) - 1
    assert compose_node_id(ClusterOrdinal(CLUSTER_ORDINAL_MAX), NODE_NUMBER_MAX) == (1 << 30) - 1
    assert (CLUSTER_ORDINAL_MAX, SEQUENCE_MAX, NODE_NUMBER_MAX) == (16_383, (1 << 49) - 1, 65_535)


@given(
    st.one_of(st.integers(max_value=-1), st.integers(min_value=CLUSTER_ORDINAL_MAX + 1)), sequences, numbers
)
def test_invalid_ordinal_is_named(ordinal: int, sequence: int, number: int) -> None:
    with pytest.raises(ValueError, match=f"cluster ordinal {ordinal} "):
        compose_id(ClusterOrdinal(ordinal), sequence)
    with pytest.raises(ValueError, match=f"cluster ordinal {ordinal} "):
        compose_node_id(ClusterOrdinal(ordinal), number)


@given(
    ordinals,
    st.one_of(st.integers(max_value=-1), st.integers(min_value=SEQUENCE_MAX + 1)),
    st.one_of(st.integers(max_value=-1), st.integers(min_value=NODE_NUMBER_MAX + 1)),
)
def test_invalid_sequence_or_number_is_named(ordinal: ClusterOrdinal, sequence: int, number: int) -> None:
    with pytest.raises(ValueError, match=f"sequence {sequence} "):
        compose_id(ordinal, sequence)
    with pytest.raises(ValueError, match=f"node number {number} "):
        compose_node_id(ordinal, number)
