"""Requests of tools to the quorum service of three real controllers. In virtual time."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_controller.server.rpc_service import CONNECTIONS_MAX
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.nouns.cluster import LATEST_LEVEL, METADATA_LEVEL, cluster_of
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import QUORUM
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import QuorumRig, member

ADDRESSES = ("c0:7000", "c1:7000", "c2:7000")
INVALID = error_pb2.ERROR_CODE_INVALID_REQUEST
DESCRIBE = wire.QuorumRequest(describe=wire.DescribeQuorum())
STRANGE_DIRECTORY = uuid.UUID(int=77)
DESCRIBE_LEADER = wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))


class Tool:
    """An operator's quorum client, and connections to single controllers."""

    def __init__(self, rig: QuorumRig, runtime: Runtime) -> None:
        self.rig = rig
        self._runtime = runtime
        self._client = QuorumClient(runtime.network, runtime.clock, ADDRESSES)

    async def ask(self, **kind: object) -> wire.QuorumResponse:
        """The leading controller."""
        return await self._client.ask(wire.QuorumRequest(**kind), timeout_s=30)  # type: ignore[arg-type]

    async def refusal(self, **kind: object) -> OperationError:
        """Return the leader's refusal."""
        with pytest.raises(OperationError) as refused:
            await self.ask(**kind)
        return refused.value

    async def connect(self, address: str) -> Connection:
        return await self._runtime.network.connect(address, QUORUM)

    async def ask_at(self, address: str, frame: bytes) -> wire.QuorumResponse:
        """Send one request to one controller; return its answer."""
        connection = await self.connect(address)
        try:
            await connection.send(frame)
            return wire.QuorumResponse.FromString(await connection.receive())
        finally:
            await connection.close()

    async def leader_and_follower(self) -> tuple[str, str]:
        """Service addresses of leader and follower, after the follower received the leader's."""
        leader = await self.rig.until_led()
        await self.rig.until_equal()
        name = self.rig.process_of(leader).name
        follower = next(each for each in ADDRESSES if not each.startswith(name))
        return f"{name}:7000", follower


Story: TypeAlias = Callable[[Tool], Awaitable[None]]


def tell(story: Story, *, blank: int = 0) -> None:
    """Run a story in its own process next to three controllers."""
    rig = QuorumRig(1, blank=blank)

    async def main(runtime: Runtime) -> None:
        await story(Tool(rig, runtime))

    tool = rig.simulation.process("tool", main)

    async def scenario() -> None:
        for process in rig.processes[: len(rig.members)]:
            process.start()
        await rig.until_led()
        tool.start()
        await wait_until(lambda: not tool.running, timeout_s=300)
        if tool.failure is not None:
            raise tool.failure

    with rig.watching():
        rig.simulation.run(scenario())


def test_the_leader_describes_all_members_and_a_follower_its_own_state() -> None:
    async def story(tool: Tool) -> None:
        leader, follower = await tool.leader_and_follower()
        await tool.rig.until_equal()
        seen = (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description
        assert seen.leader_node_id == seen.node_id
        assert [each.node_id for each in seen.members] == [each.node_id for each in tool.rig.members]
        assert all(each.voter and each.match_index == seen.last_index for each in seen.members)
        assert all(0 <= each.silent_ms < 1000 and each.behind_ms == 0 for each in seen.members)
        assert [each.service_address for each in seen.members] == list(ADDRESSES)
        (feature,) = seen.features
        assert (feature.name, feature.level) == (METADATA_LEVEL, LATEST_LEVEL)
        other = (await tool.ask_at(follower, DESCRIBE.SerializeToString())).description
        assert other.leader_node_id == seen.leader_node_id != other.node_id
        assert {each.match_index for each in other.members if each.node_id != other.node_id} == {0}
        assert {each.silent_ms for each in other.members if each.node_id != other.node_id} == {-1}
        refused = (await tool.ask_at(follower, DESCRIBE_LEADER.SerializeToString())).error
        assert (refused.code, refused.leader_address) == (error_pb2.ERROR_CODE_NOT_LEADER, leader)

    tell(story)


def test_a_follower_refuses_every_change_and_names_the_leader() -> None:
    async def story(tool: Tool) -> None:
        leader, follower = await tool.leader_and_follower()
        changes: Sequence[wire.QuorumRequest] = [
            wire.QuorumRequest(add_learner=_learner(7)),
            wire.QuorumRequest(promote=wire.PromoteLearner(node_id=member(0).node_id)),
            wire.QuorumRequest(remove=wire.RemoveMember(node_id=member(0).node_id)),
            wire.QuorumRequest(transfer=wire.TransferLeadership()),
            wire.QuorumRequest(take_snapshot=wire.TakeSnapshot()),
            wire.QuorumRequest(update_features=wire.UpdateFeatures()),
            wire.QuorumRequest(confirm_incarnation=wire.ConfirmIncarnation(incarnation=1)),
        ]
        for change in changes:
            error = (await tool.ask_at(follower, change.SerializeToString())).error
            assert error.code == error_pb2.ERROR_CODE_NOT_LEADER, change
            assert error.leader_address == leader

    tell(story)


def test_invalid_requests_are_refused_and_the_connection_continues() -> None:
    async def story(tool: Tool) -> None:
        leader, _ = await tool.leader_and_follower()
        connection = await tool.connect(leader)
        learner = _learner(7)
        nonsense: dict[bytes, str] = {
            b"\xff\xff\xff": "not a QuorumRequest",
            b"": "unknown kind",
            wire.QuorumRequest(
                add_learner=wire.AddLearner(node_id=7, directory_id=b"short")
            ).SerializeToString(): "5 bytes, not 16",
            wire.QuorumRequest(
                add_learner=wire.AddLearner(node_id=0, directory_id=learner.directory_id)
            ).SerializeToString(): "node id 0",
            wire.QuorumRequest(
                add_learner=wire.AddLearner(node_id=1 << 30, directory_id=learner.directory_id)
            ).SerializeToString(): "node id 1073741824",
            wire.QuorumRequest(
                add_learner=wire.AddLearner(
                    node_id=7,
                    directory_id=learner.directory_id,
                    peer_address="nowhere",
                    service_address="a:1",
                )
            ).SerializeToString(): "HOST:PORT",
            wire.QuorumRequest(
                add_learner=wire.AddLearner(
                    node_id=7,
                    directory_id=learner.directory_id,
                    peer_address="h" * 256 + ":1",
                    service_address="a:1",
                )
            ).SerializeToString(): "HOST:PORT",
            wire.QuorumRequest(
                promote=wire.PromoteLearner(node_id=99)
            ).SerializeToString(): "is not a member",
            wire.QuorumRequest(
                remove=wire.RemoveMember(node_id=member(0).node_id, directory_id=b"x")
            ).SerializeToString(): "1 bytes, not 16",
            wire.QuorumRequest(
                transfer=wire.TransferLeadership(node_id=99)
            ).SerializeToString(): "is not a voter",
            wire.QuorumRequest(
                confirm_incarnation=wire.ConfirmIncarnation(incarnation=1)
            ).SerializeToString(): "no forced recovery",
        }
        for frame, words in nonsense.items():
            await connection.send(frame)
            error = wire.QuorumResponse.FromString(await connection.receive()).error
            assert error.code == INVALID
            assert words in error.message
        await connection.send(DESCRIBE_LEADER.SerializeToString())
        assert wire.QuorumResponse.FromString(await connection.receive()).description.members
        await connection.close()

    tell(story)


def test_repeated_changes_succeed_and_invalid_ones_are_refused() -> None:
    async def story(tool: Tool) -> None:
        blank = tool.rig.processes[3]
        blank.start()
        await wait_until(lambda: "c3" in tool.rig.ready)
        learner = _learner(3, uuid.UUID(tool.rig.ready["c3"]["directory_id"]))
        first = (await tool.ask(add_learner=learner)).done.index
        assert (await tool.ask(add_learner=learner)).done.index >= first, "it already is a voter"
        stranger = _learner(3, uuid.UUID(int=99))
        refusal = (await tool.refusal(add_learner=stranger)).message
        assert f"`ponor cluster quorum remove {stranger.node_id} --directory" in refusal
        assert (
            "is not a voter"
            in (await tool.refusal(transfer=wire.TransferLeadership(node_id=learner.node_id))).message
        ), "a learner cannot lead"
        promoted = (await tool.ask(promote=wire.PromoteLearner(node_id=learner.node_id))).done.index
        assert (await tool.ask(promote=wire.PromoteLearner(node_id=learner.node_id))).done.index >= promoted
        other_directory = wire.RemoveMember(node_id=learner.node_id, directory_id=bytes(16))
        await tool.ask(remove=other_directory)
        seen = (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description
        assert sum(each.voter for each in seen.members) == 4, "removing an unknown directory changes nothing"
        await tool.ask(remove=wire.RemoveMember(node_id=learner.node_id))
        await tool.ask(remove=wire.RemoveMember(node_id=learner.node_id))
        seen = (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description
        assert [each.node_id for each in seen.members] == [each.node_id for each in tool.rig.members]

    tell(story, blank=1)


def test_leadership_is_transferred_to_the_named_voter() -> None:
    async def story(tool: Tool) -> None:
        for given in (1, 2, 0, 0):
            node_id = member(given).node_id
            await tool.ask(transfer=wire.TransferLeadership(node_id=node_id))
            seen = (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description
            assert seen.leader_node_id == node_id
        await tool.ask(transfer=wire.TransferLeadership())
        seen = (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description
        assert seen.leader_node_id in {member(1).node_id, member(2).node_id}, "any other voter"

    tell(story)


def test_an_answered_snapshot_is_durable_and_its_index_covers_everything_before() -> None:
    async def story(tool: Tool) -> None:
        index = (await tool.ask(take_snapshot=wire.TakeSnapshot())).done.index
        seen = (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description
        assert seen.snapshot_index >= index > 0
        assert (await tool.ask(read_index=wire.ReadIndex())).done.index >= seen.commit_index

    tell(story)


def test_finalized_feature_levels_write_no_record() -> None:
    async def story(tool: Tool) -> None:
        def update(level: int, *, validate_only: bool = False) -> wire.UpdateFeatures:
            return wire.UpdateFeatures(
                updates=[wire.FeatureUpdate(name=METADATA_LEVEL, level=level)], validate_only=validate_only
            )

        leader = await tool.rig.until_led()
        before = leader.driver.node.last_index
        await tool.ask(update_features=update(LATEST_LEVEL))
        await tool.ask(update_features=update(LATEST_LEVEL, validate_only=True))
        assert leader.driver.node.last_index == before
        refusal = await tool.refusal(update_features=update(LATEST_LEVEL + 1, validate_only=True))
        assert "upgrade the controllers first" in refusal.message
        cluster = cluster_of(leader.image)
        assert cluster is not None
        assert cluster.incarnation == 0

    tell(story)


def test_a_caller_without_requests_is_disconnected() -> None:
    async def story(tool: Tool) -> None:
        leader, _ = await tool.leader_and_follower()
        silent = await tool.connect(leader)
        with pytest.raises(ConnectionClosedError):
            await silent.receive()

    tell(story)


def test_callers_beyond_the_limit_are_refused_until_one_leaves() -> None:
    async def story(tool: Tool) -> None:
        leader, _ = await tool.leader_and_follower()
        callers = [await tool.connect(leader) for _ in range(CONNECTIONS_MAX)]
        for caller in callers:
            await caller.send(DESCRIBE.SerializeToString())
            assert wire.QuorumResponse.FromString(await caller.receive()).HasField("description")
        error = (await tool.ask_at(leader, DESCRIBE.SerializeToString())).error
        assert error.code == error_pb2.ERROR_CODE_OVERLOADED
        assert str(CONNECTIONS_MAX) in error.message
        await callers.pop().close()
        assert (await tool.ask(describe=wire.DescribeQuorum(leader_only=True))).description.members
        for caller in callers:
            await caller.close()

    tell(story)


def _learner(number: int, directory_id: uuid.UUID = STRANGE_DIRECTORY) -> wire.AddLearner:
    known = member(number)
    return wire.AddLearner(
        node_id=known.node_id,
        directory_id=directory_id.bytes,
        peer_address=known.peer_address,
        service_address=known.service_address,
    )
