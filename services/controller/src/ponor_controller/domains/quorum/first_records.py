"""What a new leader writes about the quorum before anybody may ask it for anything.

What lives here: the records that an empty log begins with, and the correction of addresses that this start was configured with and the log does not know yet (KIP-853 UpdateVoter).
"""

from __future__ import annotations

from dataclasses import replace

from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.quorum import QUORUM
from ponor_runtime.runtime import Runtime

from ponor_controller.consensus.address_book import AddressBook
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.members import Member, members_of_rows, voters_set
from ponor_controller.domains.quorum.format_records import format_records
from ponor_controller.kernel.proposer import Proposer


class QuorumRecords:
    """Steps of `ControllerLeadership`: they propose and do not wait."""

    def __init__(
        self,
        identity: DirectoryIdentity,
        addresses: AddressBook,
        proposer: Proposer,
        runtime: Runtime,
    ) -> None:
        self._identity = identity
        self._addresses = addresses
        self._proposer = proposer
        self._randomness = runtime.randomness

    def format(self) -> None:
        """Begin the log of a new cluster."""
        if cluster_of(self._proposer.view) is None:
            members = [self._with_addresses(member) for member in self._identity.initial_voters]
            identity = self._identity
            self._proposer.propose(
                format_records(identity.cluster_id, identity.cluster_ordinal, self._randomness, members)
            )

    def correct_addresses(self) -> None:
        """Let the log say where members are reached now. The members stay the same, so this is no change of the membership."""
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
