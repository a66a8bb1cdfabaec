"""Planted bug: slots are deleted as soon as their records wait for an upload."""

from __future__ import annotations

import pytest
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.object_wal.slot_deletion import SlotDeletion


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct, delete_below = ObjectWal._acknowledge, SlotDeletion.delete_below

    def acknowledge_and_delete(self: ObjectWal, below: int) -> None:
        correct(self, below)
        self._deletion.delete_below(below)

    def delete_further(self: SlotDeletion, sequence: int) -> None:
        delete_below(self, max(sequence, self._wanted))

    monkeypatch.setattr(SlotDeletion, "delete_below", delete_further)
    monkeypatch.setattr(ObjectWal, "_acknowledge", acknowledge_and_delete)
