"""The `Consensus` protocol implemented by the Raft driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ponor_raft.errors import NotLeaderError, TransferError
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.ready import Leadership
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId

from ponor_controller.consensus.address_book import AddressBook
from ponor_controller.consensus.ports import CommitListener, LeadershipListener, LogEntry
from ponor_controller.consensus.raft_driver import RaftDriver

TRANSFER_SECONDS: Final = 2.0
STOP_TRANSFER_SECONDS: Final = 0.5
"""How long a stopping leader waits for a transfer of leadership. All controllers may be stopping."""
POLL_SECONDS: Final = 0.005


class RaftConsensus:
    """Implements `ports.Consensus`."""

    def __init__(
        self,
        driver: RaftDriver,
        own: ReplicaId,
        addresses: AddressBook,
        is_connected: Callable[[ReplicaId], bool],
        clock: Clock,
    ) -> None:
        self._driver = driver
        self._is_connected = is_connected
        self._own = own
        self._addresses = addresses
        self._clock = clock

    @property
    def is_leader(self) -> bool:
        return self._driver.node.is_leader

    @property
    def leading(self) -> bool:
        return self._driver.leading

    @property
    def leaderless_ns(self) -> int:
        """See `RaftDriver.leaderless_ns`."""
        return self._driver.leaderless_ns

    @property
    def term(self) -> int:
        return self._driver.node.term

    def term_at(self, index: int) -> int | None:
        """The term of the entry at an index; None if it is not in memory."""
        return self._driver.node.term_at(index)

    @property
    def leadership(self) -> Leadership:
        return self._driver.leadership

    @property
    def membership(self) -> Membership:
        """The membership in the newest appended entry that has one."""
        return self._driver.membership

    @property
    def is_sole_voter(self) -> bool:
        """Whether this controller is the only voter."""
        return self._driver.membership.voters == (self._own,)

    @property
    def accepts_proposals(self) -> bool:
        node = self._driver.node  # the core may be in a newer term that the driver has not handled yet
        return self._driver.leading and node.is_leader and node.transfer_target is None

    @property
    def has_room(self) -> bool:
        return self._driver.node.has_room

    def room_problem(self, size_bytes: int) -> str | None:
        return self._driver.node.room_problem(size_bytes)

    def on_compaction(self, listener: Callable[[], None]) -> None:
        self._driver.compaction.on_end(listener)

    def leader_address(self) -> str | None:
        leader = self._driver.leadership.leader
        members = self.membership.members
        if leader is None and members and self._own not in members:
            # This controller is removed or not added yet, so no leader sends messages to it. It returns the
            # address of some voter, because it may be the only controller whose address a node has.
            leader = members[self._driver.node.term % len(self.membership.voters)]
        return self._addresses.service_address(leader) or None if leader is not None else None

    def propose(self, entry: LogEntry) -> None:
        self._driver.propose(entry)

    def flush(self) -> None:
        self._driver.flush()

    def on_commit(self, listener: CommitListener) -> None:
        self._driver.on_commit(listener)

    def on_leadership(self, listener: LeadershipListener) -> None:
        self._driver.on_leadership(listener)

    def on_leading(self, listener: Callable[[], None]) -> None:
        self._driver.on_leading(listener)

    async def read_index(self) -> int:
        return await self._driver.reads.read_index()

    async def transfer(self, node_id: NodeId) -> None:
        target = self._transfer_target(node_id)
        self._driver.node.transfer(target)
        self._driver.schedule()
        try:
            async with asyncio.timeout(TRANSFER_SECONDS):
                while self._driver.leadership.leader != target:
                    if self.is_leader and self._driver.node.transfer_target is None:
                        raise TransferError(
                            f"node {node_id} did not take over in time; this controller continues to lead"
                        )
                    if not self._is_connected(target):
                        raise TransferError(f"node {node_id} cannot be reached")
                    await self._clock.sleep(POLL_SECONDS)
        except TimeoutError:
            raise TransferError(
                f"node {node_id} was asked to lead and has not become the leader yet"
            ) from None

    async def transfer_before_stop(self) -> None:
        """Transfer leadership to another voter before a planned stop. A failed transfer raises no error."""
        if not self.leading or self.is_sole_voter:
            return
        try:
            async with asyncio.timeout(STOP_TRANSFER_SECONDS):
                await self.transfer(NodeId(self.most_advanced_voter().node_id))
        except (NotLeaderError, TransferError, TimeoutError):
            return

    def most_advanced_voter(self) -> ReplicaId:
        """The connected other voter with the longest log.

        Raises:
            TransferError: no other voter is connected.
        """
        progress = self._driver.node.progress()
        others = [each for each in self.membership.voters if each in progress and self._is_connected(each)]
        if not others:
            raise TransferError("no other voter can be reached")
        return max(others, key=lambda each: progress[each].match_index)

    def _transfer_target(self, node_id: NodeId) -> ReplicaId:
        if not self.leading:
            raise NotLeaderError("only the leader can transfer leadership")
        for each in self.membership.voters:
            if each.node_id == node_id and each != self._own:
                return each
        raise TransferError(f"node {node_id} is not a voter, or is this controller itself")
