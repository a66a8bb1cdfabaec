"""The guarantees of a consumer group hold for any order of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ponor_broker.groups.consumer.assignment import STATIC_LEAVING_EPOCH, MemberState
from ponor_kafka.errors import ErrorCode

from services.broker.tests.consumer_kit import SETTINGS, Client, GroupWorld, MemoryTopics
from tests.examples import examples

NAMES = st.sampled_from(["a", "b", "s"])
STATIC = {"s"}
SUBSCRIPTIONS = st.sampled_from(
    [({"x"}, None), ({"x", "y"}, None), ({"y", "z"}, None), (set(), "x|y"), ({"z"}, "[xy]"), (set(), None)]
)


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Random clients whose answers may be lost, a log that refuses, restarts, and changing topics."""

    def begin_with(self, at_once: bool) -> None:
        self.topics = MemoryTopics()
        self.topics.create("x", 3)
        self.topics.create("y", 4)
        bound = 1_000 if at_once else 0
        settings = replace(
            SETTINGS, assigned_at_once_max=bound, matched_at_once_max=bound, targets_per_part=2
        )
        self.world = GroupWorld(self.topics, settings)
        self.work: Iterator[None] | None = None
        self.clients: dict[str, Client] = {}
        self.ids = 0
        self.group_epoch = self.target_epoch = 1
        self.epochs: dict[str, int] = {}
        for name in ("a", "b"):
            self.join(name, ({"x", "y"}, None))
        self.world.pass_ms(1_000)

    @rule(name=NAMES, subscription=SUBSCRIPTIONS)
    def join(self, name: str, subscription: tuple[set[str], str | None]) -> None:
        if name in self.clients:
            return
        self.ids += 1
        self.clients[name] = Client(
            self.world,
            f"{name}.{self.ids}",
            frozenset(subscription[0]),
            subscription[1],
            name if name in STATIC else None,
        )
        self.clients[name].beat()

    @rule(name=NAMES, is_lost=st.booleans(), is_slow=st.booleans())
    def beat(self, name: str, is_lost: bool, is_slow: bool) -> None:
        if name in self.clients:
            self.clients[name].beat(is_lost=is_lost, is_slow=is_slow)

    @rule(name=NAMES)
    def apply(self, name: str) -> None:
        if name in self.clients:
            self.clients[name].apply()

    @rule()
    def all_beat(self) -> None:
        for client in self.clients.values():
            client.beat(is_slow=True)

    @rule(name=NAMES, subscription=SUBSCRIPTIONS)
    def subscribe(self, name: str, subscription: tuple[set[str], str | None]) -> None:
        client = self.clients.get(name)
        if client is not None:
            client.topics, client.expression = frozenset(subscription[0]), subscription[1] or ""
            client.is_full = True
            client.beat()

    @rule(name=NAMES, how=st.sampled_from(["leaves", "leaves for short", "vanishes"]))
    def leave(self, name: str, how: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None and client.epoch > 0 and how != "vanishes":
            client.leave(for_short=how == "leaves for short" and name in STATIC)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        """A client loses its state and joins again under the same member id."""
        if name in self.clients:
            client = self.clients[name]
            client.forget()
            client.beat()

    @rule()
    def wait_and_beat(self) -> None:
        self.world.pass_ms(1_000)
        self.all_beat()

    @rule(ms=st.sampled_from([500, 1_000, 1_000, 5_000, 5_000, 5_000, 46_000]))
    def wait(self, ms: int) -> None:
        self.world.pass_ms(ms)

    @rule()
    def begin_work(self) -> None:
        self.work = self.work or self.world.work()

    @rule()
    def do_work(self) -> None:
        if self.work is not None and next(self.work, True):
            self.work = None

    @rule(name=NAMES)
    def beat_while_the_log_refuses(self, name: str) -> None:
        self.world.refuses = True
        self.beat(name, is_lost=False, is_slow=True)
        self.world.refuses = False

    @rule()
    def restart(self) -> None:
        self.work = None
        self.world.restart()

    @rule(name=st.sampled_from(["x", "y", "z"]), partitions=st.integers(1, 6))
    def create(self, name: str, partitions: int) -> None:
        known = self.topics.find(name)
        if known is None or known.partitions < partitions:
            self.topics.create(name, partitions)

    @precondition(lambda self: len(self.topics.topics) > 1)
    @rule(name=st.sampled_from(["x", "y", "z"]))
    def delete(self, name: str) -> None:
        if name in self.topics.topics:
            self.topics.delete(name)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        self.world.group.contents.validate()
        members = self.world.group.contents.members
        used = [
            (topic_id, index)
            for client in self.clients.values()
            if client.member_id in members
            for topic_id, indexes in client.owned.items()
            for index in indexes
        ]
        assert len(used) == len(set(used))

    @invariant()
    def epochs_rise(self) -> None:
        contents = self.world.group.contents
        assert contents.group_epoch >= self.group_epoch
        assert self.target_epoch <= contents.assigned_epoch <= contents.group_epoch
        self.group_epoch, self.target_epoch = contents.group_epoch, contents.assigned_epoch
        epochs = {member_id: current.epoch for member_id, current in contents.currents.items()}
        for member_id, epoch in epochs.items():
            assert epoch >= self.epochs.get(member_id, 0) or epoch == STATIC_LEAVING_EPOCH
            assert epoch <= contents.assigned_epoch
        self.epochs = epochs

    @invariant()
    def timers_fit(self) -> None:
        contents = self.world.group.contents
        for member_id in contents.members:
            assert any(
                timer.member_id == member_id and timer.kind.value == "session" for timer in self.world.timers
            )
        for timer in self.world.timers:
            assert not timer.member_id or timer.member_id in contents.members
            if timer.kind.value == "rebalance":
                assert contents.currents[timer.member_id].state is MemberState.UNREVOKED_PARTITIONS

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._converge()

    def _converge(self) -> None:
        """Every member reaches its target if all send heartbeats, and each partition gets an owner."""
        for _ in range(30):
            self.world.pass_ms(5_000)
            for _ in self.work or self.world.work():
                pass
            self.work = None
            for client in self.clients.values():
                client.beat()
        contents = self.world.group.contents
        alive = {client.member_id for client in self.clients.values()}
        assert contents.members.keys() == alive
        assert contents.group_epoch == contents.assigned_epoch or not alive
        for client in self.clients.values():
            assert contents.current_of(client.member_id).has_reached(contents.assigned_epoch)
            assert client.owned == contents.target_of(client.member_id)
            assert client.epoch == contents.assigned_epoch
        subscribed = {name for name in self.world.group.subscribed_topics() if name in self.topics.topics}
        wanted = {
            (topic.topic_id, index)
            for name in subscribed
            for topic in (self.topics.topics[name],)
            for index in range(topic.partitions)
        }
        assert wanted == {
            (topic_id, index)
            for client in self.clients.values()
            for topic_id, indexes in client.owned.items()
            for index in indexes
        }
        for client in self.clients.values():
            quiet = client.beat()
            assert quiet.error is ErrorCode.NONE
            assert quiet.assignment is None


class PlainGroupMachine(ConsumerGroupMachine):
    """A group whose members all send heartbeats."""

    @initialize(at_once=st.booleans())
    def begin(self, at_once: bool) -> None:
        self.begin_with(at_once)


TestConsumerGroup: Any = PlainGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
