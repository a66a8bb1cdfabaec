"""The one interface of every state that must survive a move of its partition.

What lives here: the protocol alone. A clean close writes each state's snapshot to the Meta stream, an open restores it; a later
export of a tenant reads the same bytes.
"""

from __future__ import annotations

from typing import Protocol

from ponor_partition.meta_entry import MetaKey


class PartitionState(Protocol):
    """Something of a partition that outlives the broker that leads it."""

    @property
    def key(self) -> MetaKey:
        """Its place on the Meta stream."""
        ...

    def snapshot(self) -> bytes:
        """The whole state; `restore` of it on a fresh instance gives an equal one."""
        ...

    def restore(self, value: bytes) -> None:
        """Replace the state by a snapshot.

        Raises:
            PartitionCorruptError: the bytes are no snapshot of this state; the message names the rule.
        """
        ...
