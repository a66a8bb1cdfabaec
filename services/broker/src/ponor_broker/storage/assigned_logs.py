"""Which write-ahead logs the controllers gave this process to recover, as the image says. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ponor_metadata.nouns.wals import WALS, WALS_RECOVERED_BY, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeEpoch, NodeId


class Assignment(NamedTuple):
    """One log, given to this process by one record."""

    node_id: NodeId
    epoch: NodeEpoch
    token: int

    def __str__(self) -> str:
        return f"the write-ahead log of node {self.node_id}, epoch {self.epoch}"


def assigned_to(image: View, node_id: NodeId, epoch: NodeEpoch) -> list[Assignment]:
    """What this process is to recover, by owner and epoch. What was given to an earlier process of the node is not this one's yet."""
    rows = image[WALS].find(WALS_RECOVERED_BY, node_id)
    return [_assignment(row) for row in rows if row.recoverer_epoch == epoch]


def row_of(image: View, assignment: Assignment) -> WalRow | None:
    """The log's row while it is open and the assignment stands; None once it is closed or given to somebody else."""
    row = image[WALS].get((assignment.node_id, assignment.epoch))
    return row if row is not None and row.token == assignment.token else None


def is_somebody_elses(image: View, assignment: Assignment) -> bool:
    """Whether the log was given to another process, open as it is. Of a closed one the slots may still have to be deleted."""
    row = image[WALS].get((assignment.node_id, assignment.epoch))
    return row is not None and row.token != assignment.token


def _assignment(row: WalRow) -> Assignment:
    return Assignment(row.node_id, row.wal_epoch, row.token)
