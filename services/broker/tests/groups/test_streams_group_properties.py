"""The guarantees of a streams group hold for any order of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.streams.assignment import TaskId
from ponor_kafka.errors import ErrorCode

from services.broker.tests.consumer_kit import MemoryTopics
from services.broker.tests.streams_kit import SETTINGS, Client, StreamsWorld

NAMES = st.sampled_from(["a1", "a2", "b1", "c1"])
TOPICS = ("lines", "app-by-word", "app-counts")


class StreamsGroupMachine(RuleBasedStateMachine):
    """Random clients whose answers may be lost, a log that refuses, restarts, and changing topics."""

    @initialize(is_large=st.booleans(), standby=st.integers(0, 1), delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, is_large: bool, standby: int, delay_ms: int) -> None:
        self.topics = MemoryTopics()
        for name in TOPICS:
            self.topics.create(name, 3)
        bound = 0 if is_large else 1_000
        changed = replace(
            SETTINGS,
            assigned_at_once_max=bound,
            targets_per_part=2,
            standby_replicas=standby,
            initial_delay_ms=delay_ms,
        )
        self.world = StreamsWorld(self.topics, changed)
        self.work: Iterator[None] | None = None
        self.clients: dict[str, Client] = {}
        self.ids = 0
        self.epochs: dict[str, int] = {}
        self.group_epoch = self.target_epoch = 1

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        if name not in self.clients:
            self.ids += 1
            # Members whose names begin with the same letter are threads of one process.
            self.clients[name] = Client(self.world, f"{name}.{self.ids}", name[0])
            self.clients[name].beat()

    @rule(name=NAMES, is_lost=st.booleans(), is_slow=st.booleans())
    def beat(self, name: str, is_lost: bool, is_slow: bool) -> None:
        if name in self.clients:
            self.clients[name].beat(is_lost=is_lost, is_slow=is_slow)

    @rule(name=NAMES)
    def revoke(self, name: str) -> None:
        client = self.clients.get(name)
        if client is not None and client.answer is not None and client.answer.tasks is not None:
            client.owned = client.answer.tasks

    @rule(name=NAMES, is_clean=st.booleans())
    def leave(self, name: str, is_clean: bool) -> None:
        client = self.clients.pop(name, None)
        if client is not None and client.epoch > 0 and is_clean:
            client.leave()

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        """A client loses its state and joins again under the same member id."""
        if name in self.clients:
            client = self.clients[name]
            client.epoch = 0
            client.beat()

    @rule(ms=st.sampled_from([500, 1_000, 5_000, 46_000]))
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

    @rule(name=st.sampled_from(TOPICS), partitions=st.sampled_from([0, 2, 3]))
    def change_topic(self, name: str, partitions: int) -> None:
        if partitions:
            self.topics.create(name, partitions)
        elif self.topics.find(name) is not None:
            self.topics.delete(name)

    @invariant()
    def no_active_task_has_two_owners(self) -> None:
        if not hasattr(self, "world"):
            return
        contents = self.world.group.contents
        contents.validate()
        held: dict[tuple[str, TaskId], str] = {}
        for member_id, member in contents.members.items():
            current = contents.current_of(member_id).held
            for task in current.active | current.standby:
                place = (member.process_id, task)
                assert held.setdefault(place, member_id) == member_id, "a process has a task twice"

    @invariant()
    def epochs_do_not_fall(self) -> None:
        if not hasattr(self, "world"):
            return
        contents = self.world.group.contents
        assert contents.group.epoch >= self.group_epoch
        assert contents.assigned_epoch >= self.target_epoch
        self.group_epoch, self.target_epoch = contents.group.epoch, contents.assigned_epoch
        for member_id, current in contents.currents.items():
            assert current.epoch >= self.epochs.get(member_id, 0)
            self.epochs[member_id] = current.epoch

    def teardown(self) -> None:
        """Without faults, the group becomes stable, and every task has one active owner."""
        if not hasattr(self, "world"):
            return
        for name in TOPICS:
            self.topics.create(name, 3)
        self.join("a1")
        for _ in range(40):
            for client in self.clients.values():
                client.beat()
                for _ in self.work or self.world.work():
                    pass
                self.work = None
            self.world.pass_ms(2_000)  # less than the time to revoke; the session of a lost member ends
        assert self.world.group.state is GroupState.STABLE
        answers = [client.answer for client in self.clients.values()]
        assert all(answer is not None and answer.error is ErrorCode.NONE for answer in answers)
        active = [task for client in self.clients.values() for task in client.owned.active]
        assert len(active) == len(set(active)) == 6


StreamsGroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStreamsGroup: Any = StreamsGroupMachine.TestCase
