"""Rules of apply for the controllers themselves: who belongs to the quorum, and which incarnation of the log this is."""

from __future__ import annotations

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeId

from ponor_metadata import counters
from ponor_metadata.epochs import INCARNATION_MAX
from ponor_metadata.rows import ClusterRow, QuorumMemberRow
from ponor_metadata.view import View, cluster_of

DIRECTORY_ID_BYTES = 16


def voters_set(view: View, record: records.VotersSet) -> None:
    """The record names all members; the Raft log entry that carries it changes the membership in the same step."""
    members = [
        QuorumMemberRow(
            NodeId(member.node_id),
            member.directory_id,
            member.peer_address,
            member.service_address,
            member.voter,
        )
        for member in record.members
    ]
    keys = [(member.node_id, member.directory_id) for member in members]
    assert keys == sorted(set(keys)), "members of the quorum are not in order, or one is named twice"
    assert any(member.voter for member in members), "a quorum without a voter could never commit again"
    assert all(len(member.directory_id) == DIRECTORY_ID_BYTES for member in members), (
        f"a directory id has {DIRECTORY_ID_BYTES} bytes"
    )
    for gone in [(row.node_id, row.directory_id) for row in view.quorum]:
        if gone not in keys:
            view.quorum.delete(gone)
    for member in members:
        view.quorum.put(member)


def incarnation_raised(view: View, record: records.IncarnationRaised) -> None:
    """What the lost part of the log handed out is unknown: every id counter jumps over it, epochs begin anew above it (`epochs`), and nothing is deleted for
    now.
    """
    cluster = _cluster(view)
    assert record.incarnation > cluster.incarnation, f"incarnation {cluster.incarnation} does not rise"
    assert record.incarnation <= INCARNATION_MAX, f"incarnation {record.incarnation}: epochs are used up"
    for name in counters.ID_COUNTERS:
        counters.jump(view, name)
    for name in counters.TASK_COUNTERS:
        if name in view.counters:  # a log that never held one has none: its rows are those of an older build
            counters.jump(view, name)
    view.clusters.put(
        cluster._replace(incarnation=record.incarnation, incarnation_unconfirmed=True),
    )


def incarnation_confirmed(view: View, record: records.IncarnationConfirmed) -> None:
    """Deletion may go on."""
    cluster = _cluster(view)
    assert record.incarnation == cluster.incarnation, f"the incarnation is {cluster.incarnation}"
    assert cluster.incarnation_unconfirmed, f"incarnation {cluster.incarnation} was confirmed before"
    view.clusters.put(cluster._replace(incarnation_unconfirmed=False))


def _cluster(view: View) -> ClusterRow:
    cluster = cluster_of(view)
    assert cluster is not None, "the first record must be ClusterFormatted"
    return cluster
