"""Write-ahead logs that the controllers assigned to this process for recovery, from the image."""

from __future__ import annotations

from typing import NamedTuple

from ponor_metadata.nouns.wals import WALS, WALS_RECOVERED_BY, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeEpoch, NodeId


class Assignment(NamedTuple):
    """One log, assigned to this process by one record."""

    node_id: NodeId
    epoch: NodeEpoch
    token: int

    def __str__(self) -> str:
        return f"the write-ahead log of node {self.node_id}, epoch {self.epoch}"


def assigned_to(image: View, node_id: NodeId, epoch: NodeEpoch) -> list[Assignment]:
    """Return the logs that this process must recover, by owner and epoch. Assignments to an earlier
    process of the node are excluded.
    """
    rows = image[WALS].find(WALS_RECOVERED_BY, node_id)
    return [_assignment(row) for row in rows if row.recoverer_epoch == epoch]


def row_of(image: View, assignment: Assignment) -> WalRow | None:
    """Return the log's row while the log is open and the assignment is in force; None after it was
    closed or assigned to another process.
    """
    row = image[WALS].get((assignment.node_id, assignment.epoch))
    return row if row is not None and row.token == assignment.token else None


def is_somebody_elses(image: View, assignment: Assignment) -> bool:
    """Return whether the open log is now assigned to another process. The slots of a closed log may
    still have to be deleted.
    """
    row = image[WALS].get((assignment.node_id, assignment.epoch))
    return row is not None and row.token != assignment.token


def _assignment(row: WalRow) -> Assignment:
    return Assignment(row.node_id, row.wal_epoch, row.token)
