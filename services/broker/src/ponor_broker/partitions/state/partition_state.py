"""The interface of state that survives a change of leader."""

from __future__ import annotations

from typing import Protocol

from ponor_partition.meta_entry import MetaKey


class PartitionState(Protocol):
    """State that a clean close writes to the Meta stream and an open restores."""

    @property
    def key(self) -> MetaKey:
        """Its key on the Meta stream."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state; `restore` of it on a new instance gives an equal one."""
        ...

    def restore(self, value: bytes) -> None:
        """Replace the state by a snapshot.

        Raises:
            PartitionCorruptError: the bytes are not a valid snapshot; the message names the
                violated rule.
        """
        ...
