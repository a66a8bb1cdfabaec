"""Planted bug: in the index of what a compaction writes each block has the newest timestamp of the block before it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from s3stream.compaction import copy_planning, iterations, plan
from s3stream.objects.format import BlockEntry


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = plan.encoded_index

    def encoded_index(entries: Iterable[BlockEntry], *limits: Any) -> bytes:
        right = list(entries)
        wrong = [
            entry._replace(max_timestamp_ms=before.max_timestamp_ms) for before, entry in pairwise(right)
        ]
        return correct([*right[:1], *wrong], *limits)

    for module in (plan, iterations, copy_planning):
        monkeypatch.setattr(module, "encoded_index", encoded_index)
