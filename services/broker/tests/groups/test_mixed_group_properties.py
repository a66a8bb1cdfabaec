"""The guarantees of a consumer group with classic members hold for any order of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.member import JoinProtocol
from ponor_kafka.errors import ErrorCode

from services.broker.tests.classic_client import partitions_of, subscription
from services.broker.tests.consumer_kit import GroupWorld
from services.broker.tests.groups.test_consumer_group_properties import ConsumerGroupMachine

NAMES = st.sampled_from(["p", "q", "r"])
TOPICS = st.sampled_from([["x"], ["x", "y"], ["y", "z"], []])
FORGETTING = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}


@dataclass
class ClassicPeer:
    """A classic consumer that takes one step of its protocol at a time."""

    world: GroupWorld
    member_id: str
    topics: list[str]
    is_eager: bool
    generation: int = -1
    has_to_join: bool = True
    has_to_sync: bool = False
    used: dict[str, set[int]] = field(default_factory=dict)

    @property
    def claim(self) -> MemberClaim:
        return MemberClaim(self.member_id, None, self.generation)

    def step(self, *, is_lost: bool = False) -> None:
        """Join, sync or send a heartbeat; with `is_lost`, the answer is lost."""
        if self.has_to_sync:
            self._sync(is_lost)
        elif self.has_to_join:
            self._join(is_lost)
        else:
            error = self.world.classic_heartbeat(self.claim)
            self.has_to_join = not is_lost and error is not ErrorCode.NONE
            self._forget_if(not is_lost and error in FORGETTING)

    def _join(self, is_lost: bool) -> None:
        if self.is_eager:
            self.used = {}
        protocols = (JoinProtocol("range", subscription(self.topics, self.used, self.generation)),)
        answer = self.world.join(
            JoinRequest(
                self.member_id, None, "c", "/h", 45_000, 60_000, "consumer", protocols, False, False, "new"
            )
        )
        if not is_lost and answer.error is ErrorCode.NONE:
            self.generation, self.has_to_join, self.has_to_sync = answer.member_epoch, False, True

    def _sync(self, is_lost: bool) -> None:
        answer = self.world.sync(SyncRequest(self.claim, "consumer", "range", {}))
        if is_lost:
            return
        self.has_to_sync = False
        if answer.error is not ErrorCode.NONE:
            self.has_to_join = True
            self._forget_if(answer.error in FORGETTING)
            return
        before, self.used = self.used, partitions_of(answer.assignment)
        # A cooperative consumer that lost partitions joins again without them.
        lost = any(indexes - self.used.get(topic, set()) for topic, indexes in before.items())
        self.has_to_join = lost

    def _forget_if(self, is_gone: bool) -> None:
        if is_gone:
            self.used, self.generation = {}, -1


class MixedGroupMachine(ConsumerGroupMachine):
    """Classic consumers besides those of the consumer protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: dict[str, ClassicPeer] = {}
        self.peer_ids = 0

    @initialize(at_once=st.booleans(), is_eager=st.booleans())
    def begin_mixed(self, at_once: bool, is_eager: bool) -> None:
        self.begin_with(at_once)
        for name in ("p", "q"):
            self.join_classic(name, ["x", "y"], is_eager)
        self.settle()

    @rule(name=NAMES, topics=TOPICS, is_eager=st.booleans())
    def join_classic(self, name: str, topics: list[str], is_eager: bool) -> None:
        if name not in self.peers:
            self.peer_ids += 1
            self.peers[name] = ClassicPeer(self.world, f"{name}.{self.peer_ids}", topics, is_eager)
            self.peers[name].step()

    @rule(name=NAMES, is_lost=st.booleans())
    def step_classic(self, name: str, is_lost: bool) -> None:
        if name in self.peers:
            self.peers[name].step(is_lost=is_lost)

    @rule()
    def step_all_classic(self) -> None:
        for peer in self.peers.values():
            peer.step()

    @rule()
    def settle(self) -> None:
        """Let all members reach their targets, so that later steps begin with partitions in use."""
        for _ in range(6):
            self.world.pass_ms(1_000)
            for _ in self.work or self.world.work():
                pass
            self.work = None
            for client in self.clients.values():
                client.beat()
            self.step_all_classic()

    @rule()
    def all_take_one_step(self) -> None:
        self.world.pass_ms(1_000)
        for peer in self.peers.values():
            peer.step()
        for client in self.clients.values():
            client.beat()

    @rule(name=NAMES, topics=TOPICS)
    def subscribe_classic(self, name: str, topics: list[str]) -> None:
        if name in self.peers:
            self.peers[name].topics = topics
            self.peers[name].has_to_join = True
            self.peers[name].has_to_sync = False

    @rule(name=NAMES)
    def leave_classic(self, name: str) -> None:
        peer = self.peers.pop(name, None)
        if peer is not None:
            self.world.leave(peer.member_id)

    @rule(name=NAMES)
    def step_while_the_log_refuses(self, name: str) -> None:
        self.world.refuses = True
        self.step_classic(name, is_lost=False)
        self.world.refuses = False

    @invariant()
    def no_partition_is_used_twice(self) -> None:
        members = self.world.group.contents.members
        ids = {name: topic.topic_id for name, topic in self.topics.topics.items()}
        used = [
            (ids[topic], index)
            for peer in self.peers.values()
            if peer.member_id in members
            for topic, indexes in peer.used.items()
            if topic in ids
            for index in indexes
        ] + [
            (topic_id, index)
            for client in self.clients.values()
            if client.member_id in members
            for topic_id, indexes in client.owned.items()
            for index in indexes
        ]
        assert len(used) == len(set(used))

    @invariant()
    def timers_fit(self) -> None:
        members = self.world.group.contents.members
        for timer in self.world.timers:
            assert not timer.member_id or timer.member_id in members

    def _converge(self) -> None:
        for _ in range(30):
            self.world.pass_ms(5_000)
            for _ in self.work or self.world.work():
                pass
            self.work = None
            for client in self.clients.values():
                client.beat()
            for peer in self.peers.values():
                peer.step()
                peer.step()
        contents = self.world.group.contents
        alive = {client.member_id for client in self.clients.values()}
        alive |= {peer.member_id for peer in self.peers.values()}
        assert contents.members.keys() == alive
        assert contents.all_reached_target or not alive
        for peer in self.peers.values():
            named = {
                self.topics.name_of(topic_id): set(indexes)
                for topic_id, indexes in contents.target_of(peer.member_id).items()
            }
            assert peer.used == named
            assert peer.generation == contents.assigned_epoch
        for client in self.clients.values():
            assert client.owned == contents.target_of(client.member_id)


TestMixedGroup: Any = MixedGroupMachine.TestCase
TestMixedGroup.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
