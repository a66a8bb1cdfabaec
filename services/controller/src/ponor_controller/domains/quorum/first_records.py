"""The first records of a new leader: format an empty log, correct the addresses of controllers.

The configuration may change the addresses of controllers (KIP-853 UpdateVoter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import LATEST_LEVEL, METADATA_LEVEL, cluster_of
from ponor_metadata.nouns.quorum import QUORUM
from ponor_runtime.identity import DEFAULT_TENANT, ClusterOrdinal, uuid_text
from ponor_runtime.randomness import Randomness
from ponor_runtime.runtime import Runtime

from ponor_controller.consensus.address_book import AddressBook
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.members import Member, members_of_rows, voters_set
from ponor_controller.kernel.proposer import Proposer


class QuorumRecords:
    """First steps of a new leader; they propose records and do not wait."""

    def __init__(
        self, identity: DirectoryIdentity, addresses: AddressBook, proposer: Proposer, runtime: Runtime
    ) -> None:
        self._identity = identity
        self._addresses = addresses
        self._proposer = proposer
        self._randomness = runtime.randomness

    def format(self) -> None:
        """Format the log of a new cluster. Do nothing if it is formatted already."""
        if cluster_of(self._proposer.view) is None:
            members = [self._with_addresses(member) for member in self._identity.initial_voters]
            identity = self._identity
            self._proposer.propose(
                format_records(identity.cluster_id, identity.cluster_ordinal, self._randomness, members)
            )

    def correct_addresses(self) -> None:
        """Record changed addresses of members. The membership itself does not change."""
        view = self._proposer.view
        logged = members_of_rows(view[QUORUM]) or self._identity.initial_voters
        present = tuple(self._with_addresses(member) for member in logged)
        if present != members_of_rows(view[QUORUM]):
            self._proposer.propose([voters_set(present)])

    def _with_addresses(self, member: Member) -> Member:
        return replace(
            member,
            peer_address=self._addresses.peer_address(member.replica) or member.peer_address,
            service_address=self._addresses.service_address(member.replica) or member.service_address,
        )


def format_records(
    cluster_id: str, ordinal: ClusterOrdinal, randomness: Randomness, members: Sequence[Member] = ()
) -> list[records_pb2.Record]:
    """Records of the cluster, its feature level, the default tenant and the quorum.

    The namespace of the cluster's objects is random, so that no two clusters share a key.
    """
    formatted = records_pb2.ClusterFormatted(
        cluster_id=cluster_id, cluster_ordinal=ordinal, namespace=str(randomness.uuid())
    )
    level = records_pb2.FeatureLevelSet(name=METADATA_LEVEL, level=LATEST_LEVEL)
    tenant = records_pb2.TenantCreated(tenant_id=DEFAULT_TENANT, cluster_id=new_kafka_cluster_id(randomness))
    return [
        records_pb2.Record(cluster_formatted=formatted),
        records_pb2.Record(feature_level_set=level),
        records_pb2.Record(tenant_created=tenant),
        *([voters_set(members)] if members else []),
    ]


def new_kafka_cluster_id(randomness: Randomness) -> str:
    """A UUID in Kafka's format, without a leading dash."""
    while True:
        text = uuid_text(randomness.uuid())
        if not text.startswith("-"):  # Kafka avoids a leading dash: tools would parse the id as an option
            return text
