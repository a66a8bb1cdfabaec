"""Epochs that are handed out next: of nodes (and with them of write-ahead logs in the store), and of partition leaders (and with them of streams).

A forced recovery may lose the part of the log that handed out epochs. Every incarnation of the quorum therefore has a run of epochs of its own, and the first epoch that
a node or a partition gets in an incarnation is the first of that run or above it.
"""

from __future__ import annotations

from typing import Final

from ponor_runtime.identity import NodeEpoch

from ponor_metadata.rows import NodeRow, PartitionRow
from ponor_metadata.view import View, cluster_of

EPOCHS_PER_INCARNATION: Final = 1 << 24
"""More registrations of one node, or elections of one partition, than any lost part of a log can hold."""
INCARNATION_MAX: Final = 127
"""Leader epochs are int32 in Kafka's protocol: 2^7 runs of 2^24 epochs fit."""
FIRST_NODE_EPOCH: Final = NodeEpoch(1)
FIRST_LEADER_EPOCH: Final = 0


def epoch_floor(view: View) -> int:
    """The first epoch of the present incarnation: below it, epochs may have been handed out by a part of the log that is lost."""
    cluster = cluster_of(view)
    assert cluster is not None, "the first record must be ClusterFormatted"
    return cluster.incarnation * EPOCHS_PER_INCARNATION


def next_node_epoch(view: View, present: NodeRow | None) -> NodeEpoch:
    """The epoch of the next process that registers under a node id; `present` is the row of the one before it."""
    following = FIRST_NODE_EPOCH if present is None else present.node_epoch + 1
    return NodeEpoch(max(following, epoch_floor(view)))


def next_leader_epoch(view: View, present: PartitionRow | None) -> int:
    """The epoch under which a partition is led next; `present` is None for a new partition."""
    following = FIRST_LEADER_EPOCH if present is None else present.leader_epoch + 1
    return max(following, epoch_floor(view))
