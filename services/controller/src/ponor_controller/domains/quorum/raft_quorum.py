"""Change the quorum: compute the new list of members, propose it, and wait for the commit.

The Raft core decides whether a change is safe now.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.quorum import QUORUM
from ponor_raft.errors import MembershipChangeError, NotLeaderError, TransferError
from ponor_raft.follower_progress import FollowerProgress
from ponor_raft.membership import LEARNERS_MAX, VOTERS_MAX
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId

from ponor_controller.consensus.address_book import AddressBook
from ponor_controller.consensus.members import Member, members_of_rows
from ponor_controller.consensus.raft_consensus import RaftConsensus
from ponor_controller.consensus.raft_driver import TICK_SECONDS, RaftDriver
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.kernel.decisions import invalid
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.kernel.snapshotter import Snapshotter

TICK_MS: Final = int(TICK_SECONDS * 1000)
UNKNOWN_MS: Final = -1


class RaftQuorum:
    """Describes and changes the quorum, transfers leadership and takes snapshots."""

    def __init__(
        self,
        driver: RaftDriver,
        consensus: RaftConsensus,
        proposer: Proposer,
        snapshotter: Snapshotter,
        log: RecordLog,
        addresses: AddressBook,
    ) -> None:
        self._driver = driver
        self._consensus = consensus
        self._proposer = proposer
        self._snapshotter = snapshotter
        self._log = log
        self._addresses = addresses

    def describe(self) -> wire.QuorumDescription:
        node, image = self._driver.node, self._image
        cluster = cluster_of(image)
        progress = node.progress()
        return wire.QuorumDescription(
            node_id=node.own.node_id,
            leader_node_id=node.leader.node_id if node.leader is not None else 0,
            term=node.term,
            commit_index=image.index,
            last_index=node.last_index,
            snapshot_index=self._log.newest.index if self._log.newest is not None else 0,
            incarnation=cluster.incarnation if cluster is not None else 0,
            members=[self._state(member, progress.get(member.replica)) for member in self._members()],
        )

    async def confirm_leadership(self) -> int:
        return await self._redirecting(self._consensus.read_index)

    async def add_learner(self, learner: Member) -> int:
        members = self._members()
        present = next((each for each in members if each.node_id == learner.node_id), None)
        if present is not None and present.directory_id == learner.directory_id:
            return await self._unchanged()
        if present is not None:
            raise invalid(
                f"node {learner.node_id} is a member with another directory; remove it first: "
                f"`ponor cluster quorum remove {learner.node_id} --directory"
                f" {uuid.UUID(bytes=present.directory_id)}`"
            )
        if sum(not each.voter for each in members) >= LEARNERS_MAX:
            raise invalid(f"the quorum has {LEARNERS_MAX} learners, the maximum; promote or remove one first")
        return await self._change([*members, replace(learner, voter=False)])

    async def promote(self, node_id: int) -> int:
        member = self._require(node_id, b"")
        if member.voter:
            return await self._unchanged()
        members = self._members()
        if sum(each.voter for each in members) >= VOTERS_MAX:
            raise invalid(f"the quorum has {VOTERS_MAX} voters, the maximum; remove one first")
        return await self._change(
            [*(each for each in members if each != member), replace(member, voter=True)]
        )

    async def remove(self, node_id: int, directory_id: bytes) -> int:
        members = self._members()
        removed = [
            each for each in members if each.node_id == node_id and directory_id in (b"", each.directory_id)
        ]
        if not removed:
            return await self._unchanged()
        rest = [each for each in members if each not in removed]
        if not any(each.voter for each in rest):
            raise invalid(f"node {node_id} is the only voter; add and promote another controller first")
        return await self._change(rest)

    async def transfer(self, node_id: int) -> int:
        node = self._driver.node
        last_index = node.last_index
        if node_id != node.own.node_id:
            try:
                target = node_id or self._consensus.most_advanced_voter().node_id
                await self._consensus.transfer(NodeId(target))
            except NotLeaderError:
                raise self._not_leader() from None
            except TransferError as error:
                raise invalid(str(error)) from error
        return last_index

    async def take_snapshot(self) -> int:
        return await self._snapshotter.write_now()

    @property
    def _image(self) -> MetadataImage:
        return self._proposer.view.image

    def _members(self) -> tuple[Member, ...]:
        return members_of_rows(self._proposer.view[QUORUM])

    def _state(self, member: Member, progress: FollowerProgress | None) -> wire.MemberState:
        node = self._driver.node
        state = wire.MemberState(
            node_id=member.node_id,
            directory_id=member.directory_id,
            peer_address=self._addresses.peer_address(member.replica),
            service_address=self._addresses.service_address(member.replica),
            voter=member.voter,
            silent_ms=UNKNOWN_MS,
            behind_ms=UNKNOWN_MS,
        )
        if member.replica == node.own:
            state.match_index = node.durable_index
            state.silent_ms = 0
            state.behind_ms = 0 if node.is_leader else UNKNOWN_MS
        elif progress is not None:
            state.match_index = progress.match_index
            state.silent_ms = progress.heard_ticks_ago * TICK_MS
            state.behind_ms = 0 if progress.match_index >= node.commit_index else UNKNOWN_MS
        return state

    def _require(self, node_id: int, directory_id: bytes) -> Member:
        for each in self._members():
            if each.node_id == node_id and directory_id in (b"", each.directory_id):
                return each
        raise invalid(f"node {node_id} is not a member of the quorum; see `ponor cluster quorum describe`")

    async def _change(self, members: list[Member]) -> int:
        try:
            index = self._proposer.propose_members(members)
        except NotLeaderError:
            raise self._not_leader() from None
        except MembershipChangeError as error:
            raise OperationError(error_pb2.ERROR_CODE_OVERLOADED, f"{error}; try again") from error
        await self._proposer.commits.reached(index)
        return index

    async def _unchanged(self) -> int:
        """A requested change is already in force: wait for its commit and for the confirmation of this
        leader.
        """
        index = self._proposer.last_index
        await self._proposer.commits.reached(index)
        await self.confirm_leadership()
        return index

    async def _redirecting(self, request: Callable[[], Awaitable[int]]) -> int:
        try:
            return await request()
        except NotLeaderError:
            raise self._not_leader() from None

    def _not_leader(self) -> OperationError:
        return OperationError(
            error_pb2.ERROR_CODE_NOT_LEADER,
            "this controller does not lead; send the request to the leader",
            leader_address=self._consensus.leader_address() or "",
        )
