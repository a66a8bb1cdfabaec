"""Addresses of controllers, from three sources.

The configuration of this start has precedence (it names controllers by node number), then the log, then the
address that a replica reported when it connected. If the log had precedence, controllers whose hosts were
renamed could not reach each other (KIP-1347).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ponor.metadata.v1 import records_pb2
from ponor_raft.membership import ReplicaId
from ponor_runtime.identity import NodeId, number_of_node

from ponor_controller.consensus.members import Member, members_in

HINTS_MAX = 64
"""Bound of the replicas that are not in the log and whose reported addresses are stored."""


class Addresses(NamedTuple):
    """HOST:PORT of the two ports of one controller; empty if unknown."""

    peer: str
    service: str


UNKNOWN = Addresses("", "")
EVERY_INTERFACE = ("", "0.0.0.0", "[::]")  # noqa: S104 -- only compared, not bound


def reachable(address: str) -> str:
    """The address; empty if it is a wildcard that other hosts cannot connect to."""
    return "" if address.rpartition(":")[0] in EVERY_INTERFACE else address


class AddressBook:
    """Maps replicas to addresses."""

    def __init__(self, configured: Iterable[Member]) -> None:
        self._configured = {
            number_of_node(member.node_id): Addresses(member.peer_address, member.service_address)
            for member in configured
        }
        self._logged: dict[ReplicaId, Addresses] = {}
        self._hints: dict[ReplicaId, Addresses] = {}

    def set_logged(self, members: Iterable[Member]) -> None:
        """Set the addresses of the members that the log contains."""
        self._logged = {
            member.replica: Addresses(member.peer_address, member.service_address) for member in members
        }

    def set_logged_from(self, data: bytes) -> None:
        """Set the addresses from an encoded batch, if it contains a list of members."""
        members = members_in(records_pb2.RecordBatch.FromString(data))
        if members is not None:
            self.set_logged(members)

    def add_hint(self, replica: ReplicaId, addresses: Addresses) -> None:
        """Store the addresses that a replica reported about itself."""
        self._hints.pop(replica, None)
        self._hints[replica] = addresses
        while len(self._hints) > HINTS_MAX:
            del self._hints[next(iter(self._hints))]

    def peer_address(self, replica: ReplicaId) -> str:
        """HOST:PORT for other controllers; empty if unknown."""
        return next((each.peer for each in self._known(replica) if each.peer), "")

    def service_address(self, replica: ReplicaId) -> str:
        """HOST:PORT of its sessions and subscriptions; empty if unknown."""
        return next((each.service for each in self._known(replica) if each.service), "")

    def _known(self, replica: ReplicaId) -> tuple[Addresses, ...]:
        return (
            self._configured.get(number_of_node(NodeId(replica.node_id)), UNKNOWN),
            self._logged.get(replica, UNKNOWN),
            self._hints.get(replica, UNKNOWN),
        )
