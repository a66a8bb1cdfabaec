"""Validation of a whole view: the invariants of all nouns, and the indexes.

Tests and simulation call it after every batch; production does not, because it reads all rows.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ponor_metadata.image.registry import NOUNS, SCHEMAS
from ponor_metadata.nouns.cluster import CLUSTERS
from ponor_metadata.tables.schema import Index, Table, View


def validate(view: View) -> None:
    """Check every invariant.

    Raises:
        AssertionError: an invariant is broken; the message names the row and the rule.
    """
    if view.index == 0:
        return
    if not len(view[CLUSTERS]):
        # Only batches without records (the opening entries of terms) may precede the batch that formats the
        # cluster.
        assert not any(len(view[schema]) for schema in SCHEMAS), "the image has rows, but no cluster"
        return
    for schema in SCHEMAS:
        _check_table(view[schema])
    for noun in NOUNS:
        if noun.check is not None:
            noun.check(view)


def _check_table(table: Table[Any, Any]) -> None:
    rows = list(table)
    keys = [table.schema.key(row) for row in rows]
    assert keys == sorted(set(keys)), f"{table.schema.name}: keys are not in order"
    assert len(rows) == len(table), f"{table.schema.name}: length"
    for index in table.schema.indexes:
        _check_index(table, index, rows)


def _check_index(table: Table[Any, Any], index: Index[Any, Any], rows: list[Any]) -> None:
    expected: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        for index_key in index.keys(row):
            expected[index_key].append(row)
    for index_key, found in expected.items():
        assert list(table.find(index, index_key)) == sorted(found, key=index.order), (
            f"index {index.name} is wrong under {index_key!r}"
        )
