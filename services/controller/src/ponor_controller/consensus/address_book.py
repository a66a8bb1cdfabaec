"""Where replicas are reached.

What lives here: three sources and their order. What this start was configured with goes first, by node number: addresses that only the log knows could lock a quorum
out for ever once hosts were renamed (KIP-1347). Then the log, then what a replica said of itself when it called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ponor.metadata.v1 import records_pb2
from ponor_raft.membership import ReplicaId
from ponor_runtime.identity import NodeId, number_of_node

from ponor_controller.consensus.members import Member, members_in

HINTS_MAX = 64
"""Replicas that called and are in no membership known here."""


class Addresses(NamedTuple):
    """HOST:PORT of the two ports of one controller; empty: not known."""

    peer: str
    service: str


UNKNOWN = Addresses("", "")
EVERY_INTERFACE = ("", "0.0.0.0", "[::]")  # noqa: S104 -- to be recognised, not bound


def reachable(address: str) -> str:
    """The address, unless it only says on which interfaces somebody listens; then nothing."""
    return "" if address.rpartition(":")[0] in EVERY_INTERFACE else address


class AddressBook:
    """Addresses by replica."""

    def __init__(self, configured: Iterable[Member]) -> None:
        self._configured = {
            number_of_node(member.node_id): Addresses(member.peer_address, member.service_address)
            for member in configured
        }
        self._logged: dict[ReplicaId, Addresses] = {}
        self._hints: dict[ReplicaId, Addresses] = {}

    def learn(self, members: Iterable[Member]) -> None:
        """The log names these members."""
        self._logged = {
            member.replica: Addresses(member.peer_address, member.service_address) for member in members
        }

    def learn_from(self, data: bytes) -> None:
        """An encoded batch that is in the log here names the members."""
        members = members_in(records_pb2.RecordBatch.FromString(data))
        if members is not None:
            self.learn(members)

    def heard(self, replica: ReplicaId, addresses: Addresses) -> None:
        """A replica said this of itself."""
        self._hints.pop(replica, None)
        self._hints[replica] = addresses
        while len(self._hints) > HINTS_MAX:
            del self._hints[next(iter(self._hints))]

    def peer_address(self, replica: ReplicaId) -> str:
        """Where other controllers reach it."""
        return next((each.peer for each in self._known(replica) if each.peer), "")

    def service_address(self, replica: ReplicaId) -> str:
        """Where its sessions and subscriptions are served."""
        return next((each.service for each in self._known(replica) if each.service), "")

    def _known(self, replica: ReplicaId) -> tuple[Addresses, ...]:
        return (
            self._configured.get(number_of_node(NodeId(replica.node_id)), UNKNOWN),
            self._logged.get(replica, UNKNOWN),
            self._hints.get(replica, UNKNOWN),
        )
