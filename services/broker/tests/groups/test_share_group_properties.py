"""Properties of the share group's state machine: members come, go, and lose answers; topics change; the log
refuses; the coordinator restarts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest, Outcome
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.instructions import SetTimer, Timer
from ponor_broker.groups.record_codec import decode_entry, encode_entry
from ponor_broker.groups.share.membership import ShareMembership, stored
from ponor_broker.groups.share.records import ShareEntry, ShareGroupEntry, StatePartitionsEntry
from ponor_broker.groups.share.state_partitions import StatesById
from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import at_once

from services.broker.tests.consumer_kit import MemoryTopics

SETTINGS = ConsumerSettings(
    session_timeout_ms=45_000, assignment_interval_ms=1_000, members_max=4, assignors={}
)
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
NAMES = ("x", "y")


@dataclass
class Client:
    """What a member knows."""

    epoch: int = 0
    topics: frozenset[str] = frozenset()
    held: frozenset[tuple[bytes, int]] = frozenset()
    is_full: bool = True


class ShareGroupMachine(RuleBasedStateMachine):
    """One group; `log` has its records, encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = MemoryTopics()
        self.topics.create("x", 2)
        self.now_ms = 1_000_000
        self.log: dict[bytes, bytes] = {}
        self.clients: dict[str, Client] = {}
        self.refuses = False
        self.restart()

    def _set(self, instructions: object) -> None:
        for each in instructions:  # type: ignore[attr-defined]
            if isinstance(each, SetTimer):
                self.timers[each.timer] = self.now_ms + each.delay_ms
            else:
                self.timers.pop(each.timer, None)

    def _write(self, entry: ShareGroupEntry) -> None:
        key, value = encode_entry(entry)
        if value is None:
            self.log.pop(key, None)
        else:
            self.log[key] = value

    def _execute(self, outcome: Outcome) -> bool:
        if self.refuses and outcome.draft.entries:
            self.group.take_back(outcome)
            return False
        for entry in outcome.draft.entries:
            self._write(stored(entry))
        self._set(outcome.timers)
        return True

    def _beat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        outcome = self.group.heartbeat(request, self.now_ms)
        assert outcome.answer is not None
        if outcome.answer.error is not ErrorCode.NONE:
            assert not outcome.draft.entries
        is_done = self._execute(outcome)
        return outcome.answer if is_done else HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # --- what happens

    @rule(member_id=IDS, topics=st.frozensets(st.sampled_from(NAMES), min_size=1))
    def join(self, member_id: str, topics: frozenset[str]) -> None:
        client = self.clients.setdefault(member_id, Client())
        self.clients[member_id] = replace(client, epoch=0, topics=topics, held=frozenset(), is_full=True)
        self.beat(member_id, is_lost=False)

    @rule(member_id=IDS, is_lost=st.booleans())
    def beat(self, member_id: str, is_lost: bool) -> None:
        client = self.clients.get(member_id)
        if client is None:
            return
        topics = client.topics if client.is_full else None
        answer = self._beat(HeartbeatRequest(member_id, client.epoch, topics=topics))
        if answer.error in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            self.clients[member_id] = Client(topics=client.topics)
        elif is_lost or answer.error is not ErrorCode.NONE:
            client.is_full = True
        else:
            client.epoch, client.is_full = answer.member_epoch, False
            if answer.assignment is not None:
                client.held = frozenset((topic, i) for topic, each in answer.assignment.items() for i in each)

    @rule(member_id=IDS)
    def leave(self, member_id: str) -> None:
        if self._beat(HeartbeatRequest(member_id, -1)).error is ErrorCode.NONE:
            self.clients.pop(member_id, None)

    @rule(member_id=IDS, topics=st.frozensets(st.sampled_from(NAMES), min_size=1))
    def resubscribe(self, member_id: str, topics: frozenset[str]) -> None:
        if member_id in self.clients:
            self.clients[member_id].topics, self.clients[member_id].is_full = topics, True

    @rule(is_created=st.booleans(), is_whole=st.booleans())
    def initialize(self, is_created: bool, is_whole: bool) -> None:
        missing: StatesById = self.group.uninitialized()
        if not missing:
            return
        if not is_whole:
            missing = dict([next(iter(missing.items()))])
        states = self.group.states.begun(missing)
        self._write(self.group.change_states(states))
        ended = states.ended(missing, {}) if is_created else states.ended({}, missing)
        self._write(self.group.change_states(ended))

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 3))
    def create_topic(self, name: str, partitions: int) -> None:
        known = self.topics.find(name)
        if known is None or known.partitions < partitions:
            self.topics.create(name, partitions)

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        topic = self.topics.find(name)
        if topic is None:
            return
        self.topics.delete(name)
        self._write(self.group.change_states(self.group.states.dropped([topic.topic_id])))

    @rule(ms=st.sampled_from([500, 1_000, 20_000]))
    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        for timer in [timer for timer, due_ms in self.timers.items() if due_ms <= self.now_ms]:
            if timer in self.timers:
                del self.timers[timer]
                if not self._execute(self.group.timer_fired(timer, self.now_ms)):
                    self.timers[timer] = self.now_ms + 100

    @rule(refuses=st.booleans())
    def fill_the_log(self, refuses: bool) -> None:
        self.refuses = refuses

    @rule()
    def restart(self) -> None:
        self.timers: dict[Timer, int] = {}
        self.group = ShareMembership("g", SETTINGS, self.topics, lambda _: True)
        for key, value in self.log.items():
            entry = decode_entry(key, value)
            assert isinstance(entry, ShareEntry | StatePartitionsEntry)
            self.group.put(entry)
        self._set(self.group.restored())

    # --- what holds

    @precondition(lambda self: not self.refuses)
    @rule()
    def settle(self) -> None:
        """When nothing changes any more, the members together have every partition that has a state."""
        for _ in range(3):
            self.initialize(is_created=True, is_whole=True)
            for member_id in list(self.clients):
                self.beat(member_id, is_lost=False)
            self.pass_ms(1_000)
        for member_id in list(self.clients):
            self.beat(member_id, is_lost=False)
        members = self.group.contents.members
        assert {each for each, client in self.clients.items() if client.epoch} == set(members)
        wanted = {
            (topic.topic_id, index)
            for name in self.group.subscribed_topics()
            if (topic := self.topics.find(name)) is not None
            for index in range(topic.partitions)
        }
        held = [self.clients[member_id].held for member_id in members]
        assert frozenset().union(*held) == wanted
        if wanted:
            assert all(
                held_by
                for member_id, held_by in zip(members, held, strict=True)
                if any(self.topics.find(name) for name in self.clients[member_id].topics)
            ), "a member has no partition"

    @invariant()
    def memory_is_what_the_log_contains(self) -> None:
        again = {}
        for entry in self.group.entries():
            key, value = encode_entry(entry)
            again[key] = value
        assert again == self.log

    @invariant()
    def members_have_only_initialized_partitions_of_their_topics(self) -> None:
        contents = self.group.contents
        assert len(contents.members) <= SETTINGS.members_max
        for target in contents.targets.values():
            for topic_id in target:
                name = self.topics.name_of(topic_id)
                states = self.group.states.initialized.get(topic_id)
                assert name is None or (states is not None and target[topic_id] <= states.partitions)

    @precondition(lambda self: self.group.needs_target and not self.refuses)
    @rule()
    def compute_in_steps(self) -> None:
        computation = self.group.begin_computation()
        result = at_once(computation.steps)
        for part in self.group.installation(computation, result, self.now_ms):
            self._execute(part)


TestShareGroup = ShareGroupMachine.TestCase
TestShareGroup.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
