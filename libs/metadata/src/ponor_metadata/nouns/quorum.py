"""The controllers: members of the quorum, and the incarnation of the log."""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeId

from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import CLUSTERS, INCARNATION_MAX, require_cluster, run_of
from ponor_metadata.nouns.counters import COUNTERS
from ponor_metadata.tables.columns import BLOBS, BOOLEANS, INTEGERS, TEXTS
from ponor_metadata.tables.schema import FIRST_TWO_FIELDS, Noun, Schema, Section, View

DIRECTORY_ID_BYTES: Final = 16


class QuorumMemberRow(NamedTuple):
    """A controller of the quorum. A controller that lost its disk becomes another member, with the same node
    id and a new directory id.
    """

    node_id: NodeId
    directory_id: bytes
    peer_address: str
    service_address: str
    voter: bool


QUORUM: Final[Schema[tuple[NodeId, bytes], QuorumMemberRow]] = Schema(
    "quorum", QuorumMemberRow, FIRST_TWO_FIELDS, (Section(16, (INTEGERS, BLOBS, TEXTS, TEXTS, BOOLEANS)),)
)


def voters_set(view: View, record: records.VotersSet) -> None:
    """Replace all members. The log entry that contains this record also changes the membership of the Raft
    core.
    """
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
    assert keys == sorted(set(keys)), "the members of the quorum are not sorted, or a member occurs twice"
    assert any(member.voter for member in members), "a quorum needs at least one voter"
    assert all(len(member.directory_id) == DIRECTORY_ID_BYTES for member in members), (
        f"a directory id has {DIRECTORY_ID_BYTES} bytes"
    )
    for former in [(row.node_id, row.directory_id) for row in view[QUORUM]]:
        if former not in keys:
            view[QUORUM].delete(former)
    for member in members:
        view[QUORUM].put(member)


def incarnation_raised(view: View, record: records.IncarnationRaised) -> None:
    """Begin a new incarnation after a forced recovery.

    It is unknown which ids and epochs were assigned in the lost part of the log. So every counter is raised
    above all possible ones, epochs begin above them (`cluster.epoch_floor`), and nothing is deleted from the
    store until the incarnation is confirmed.
    """
    cluster = require_cluster(view)
    assert record.incarnation > cluster.incarnation, (
        f"the new incarnation is not above incarnation {cluster.incarnation}"
    )
    assert record.incarnation <= INCARNATION_MAX, f"incarnation {record.incarnation}: no epoch is left"
    run = run_of(record.incarnation)
    for name in counters.ID_COUNTERS:
        counters.jump(view, name, run)
    for name in counters.TASK_COUNTERS:
        if name in view[COUNTERS]:
            counters.jump(view, name, run)
    view[CLUSTERS].put(
        cluster._replace(incarnation=record.incarnation, incarnation_unconfirmed=True),
    )


def incarnation_confirmed(view: View, record: records.IncarnationConfirmed) -> None:
    """Allow deletions from the store again."""
    cluster = require_cluster(view)
    assert record.incarnation == cluster.incarnation, f"the incarnation is {cluster.incarnation}"
    assert cluster.incarnation_unconfirmed, f"incarnation {cluster.incarnation} was confirmed before"
    view[CLUSTERS].put(cluster._replace(incarnation_unconfirmed=False))


def _check(view: View) -> None:
    members = list(view[QUORUM])
    assert not members or any(member.voter for member in members), "the quorum has no voter"
    voters = [member.node_id for member in members if member.voter]
    assert len(set(voters)) == len(voters), "a node has two voters, with different directories"


NOUN: Final = Noun(
    schemas=(QUORUM,), rules=(voters_set, incarnation_raised, incarnation_confirmed), check=_check
)
