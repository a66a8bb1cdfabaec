"""Members of the quorum with their addresses, and their translation into Raft's `Membership`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.quorum import QuorumMemberRow
from ponor_raft.membership import Membership, ReplicaId
from ponor_runtime.identity import NodeId

VOTERS_SET_TAG: Final = b"\x82\x05"
"""First bytes of an encoded VotersSet (field 80 of Record). A batch without these bytes contains none."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One controller of the quorum. Addresses are HOST:PORT; a sole controller may have no peer address."""

    node_id: NodeId
    directory_id: bytes
    peer_address: str
    service_address: str
    voter: bool = True

    @property
    def replica(self) -> ReplicaId:
        """Its id in the Raft core."""
        return ReplicaId(self.node_id, self.directory_id)


def membership_of(members: Iterable[Member]) -> Membership:
    """Return the members without addresses, as the Raft core needs them."""
    ordered = sorted(members)
    return Membership(
        tuple(member.replica for member in ordered if member.voter),
        tuple(member.replica for member in ordered if not member.voter),
    )


def voters_set(members: Iterable[Member]) -> records_pb2.Record:
    """The record that sets the members."""
    return records_pb2.Record(
        voters_set=records_pb2.VotersSet(
            members=[
                records_pb2.QuorumMember(
                    node_id=member.node_id,
                    directory_id=member.directory_id,
                    peer_address=member.peer_address,
                    service_address=member.service_address,
                    voter=member.voter,
                )
                for member in sorted(members)
            ]
        )
    )


def members_in(batch: records_pb2.RecordBatch) -> tuple[Member, ...] | None:
    """The members that a batch sets; None if it sets none."""
    for record in reversed(batch.records):
        if record.WhichOneof("kind") == "voters_set":
            return tuple(
                Member(
                    NodeId(member.node_id),
                    member.directory_id,
                    member.peer_address,
                    member.service_address,
                    member.voter,
                )
                for member in record.voters_set.members
            )
    return None


def membership_in(data: bytes) -> Membership | None:
    """The membership that an encoded batch sets.

    Raises:
        DecodeError: the bytes are not a record batch.
    """
    members = members_in(records_pb2.RecordBatch.FromString(data))
    return membership_of(members) if members is not None else None


def members_of_rows(rows: Iterable[QuorumMemberRow]) -> tuple[Member, ...]:
    """The members in an image."""
    return tuple(
        Member(row.node_id, row.directory_id, row.peer_address, row.service_address, row.voter)
        for row in rows
    )
