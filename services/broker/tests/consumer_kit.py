"""A consumer group without I/O around its state machine: topics, clients, timers, and a log of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ponor_broker.groups.assignors.uniform import UniformAssignor
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest, Outcome
from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.consumer.record_codec import decode_consumer_entry, encode_consumer_entry
from ponor_broker.groups.consumer.settings import ConsumerSettings, MigrationPolicy
from ponor_broker.groups.consumer.topics import Topic
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import LeaveAnswer, SetTimer, SyncAnswer, Timer
from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import at_once

GROUP = "g"
SETTINGS = ConsumerSettings(
    session_timeout_ms=45_000,
    assignment_interval_ms=1_000,
    members_max=1_000,
    assignors={"uniform": UniformAssignor()},
    migration=MigrationPolicy.UPGRADE,
)


@dataclass
class MemoryTopics:
    """Topics by name."""

    topics: dict[str, Topic] = field(default_factory=dict)
    version: int = 0

    def create(self, name: str, partitions: int) -> bytes:
        """Create a topic, or change its number of partitions."""
        self.version += 1
        known = self.topics.get(name)
        topic_id = self.version.to_bytes(16, "big") if known is None else known.topic_id
        self.topics[name] = Topic(topic_id, partitions)
        return topic_id

    def delete(self, name: str) -> None:
        self.version += 1
        del self.topics[name]

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def names(self) -> Sequence[str]:
        return sorted(self.topics)


class GroupWorld:
    """The coordinator's side: executes outcomes. The log keeps encoded records; `restart` loads them."""

    def __init__(self, topics: MemoryTopics, settings: ConsumerSettings = SETTINGS) -> None:
        self.topics = topics
        self.settings = settings
        self.log: dict[bytes, bytes] = {}
        self.now_ms = 1_000_000
        self.refuses = False
        self.room_bytes = 1 << 30
        self.restart()

    def restart(self) -> None:
        self.timers: dict[Timer, int] = {}
        self.group = ConsumerMembership(GROUP, self.settings, self.topics, self._admits)
        for key, value in self.log.items():
            self.group.contents.put(decode_consumer_entry(int.from_bytes(key[:2], "big"), key, value))
        self._set(self.group.restored())

    def _admits(self, more_bytes: int) -> bool:
        return more_bytes <= 0 or more_bytes <= self.room_bytes

    def _set(self, timers: Sequence[object]) -> None:
        for each in timers:
            if isinstance(each, SetTimer):
                self.timers[each.timer] = self.now_ms + each.delay_ms
            else:
                self.timers.pop(each.timer, None)  # type: ignore[attr-defined]

    def execute(self, outcome: Outcome) -> bool:
        """Write the records and set the timers; return False if the log refuses."""
        if self.refuses and outcome.draft.entries:
            self.group.take_back(outcome)
            return False
        for entry in outcome.draft.entries:
            key, value = encode_consumer_entry(entry)
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value
        self._set(outcome.timers)
        return True

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        outcome = self.group.heartbeat(request, self.now_ms)
        answer = outcome.answer
        assert answer is not None
        if answer.error is not ErrorCode.NONE:
            assert not outcome.draft.entries
        return answer if self.execute(outcome) else HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def join(self, request: JoinRequest) -> HeartbeatAnswer:
        outcome = self.group.join(request, self.now_ms)
        assert outcome.answer is not None
        return (
            outcome.answer if self.execute(outcome) else HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )

    def sync(self, request: SyncRequest) -> SyncAnswer:
        answer, timers = self.group.sync(request)
        self._set(timers)
        return answer

    def classic_heartbeat(self, claim: MemberClaim) -> ErrorCode:
        error, outcome = self.group.classic_heartbeat(claim, self.now_ms)
        return error if self.execute(outcome) else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def leave(self, *member_ids: str) -> LeaveAnswer:
        answer, outcome = self.group.leave([MemberClaim(each) for each in member_ids], self.now_ms)
        assert self.execute(outcome)
        return answer

    def work(self) -> Iterator[None]:
        """Do the work that is too large for an event, in steps."""
        group = self.group
        if group.needs_resolution(self.now_ms):
            resolution = group.begin_resolution(self.now_ms)
            yield
            matches = at_once(resolution.steps)
            yield
            if group is self.group:
                for part in group.resolved(resolution, matches, self.now_ms):
                    if not self.execute(part):
                        group.delay_resolution(self.now_ms)
                        return
                    yield
                    if group is not self.group:
                        return
        if group.needs_target and group is self.group:
            computation = group.begin_computation()
            yield
            result = at_once(computation.steps)
            yield
            for part in group.installation(computation, result, self.now_ms):
                if not self.execute(part):
                    self._set(group.retry_assignment(100))
                    return
                yield
                if group is not self.group:
                    return

    def pass_ms(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while self.timers:
            timer = min(self.timers, key=self.timers.__getitem__)
            if self.timers[timer] > until_ms:
                break
            self.now_ms = self.timers.pop(timer)
            if not self.execute(self.group.timer_fired(timer, self.now_ms)):
                self.timers[timer] = self.now_ms + 100
                until_ms = max(until_ms, self.now_ms)
                if self.refuses:
                    break
        self.now_ms = until_ms


@dataclass
class Client:
    """A consumer: follows the answers, and reports what it uses."""

    world: GroupWorld
    member_id: str
    topics: frozenset[str] = frozenset()
    expression: str | None = None
    instance_id: str | None = None
    epoch: int = 0
    owned: dict[bytes, frozenset[int]] = field(default_factory=dict)
    wanted: dict[bytes, frozenset[int]] | None = None
    is_full: bool = True
    reported: Mapping[bytes, frozenset[int]] | None = None

    def request(self) -> HeartbeatRequest:
        request = HeartbeatRequest(
            self.member_id, self.epoch, self.instance_id, client_id="c", client_host="/h"
        )
        if self.epoch == 0 or self.is_full:
            return replace(
                request,
                rebalance_timeout_ms=60_000,
                topics=self.topics,
                expression=self.expression,
                owned={} if self.epoch == 0 else dict(self.owned),
            )
        return replace(request, owned=dict(self.owned) if self.reported != self.owned else None)

    def beat(self, *, is_lost: bool = False, is_slow: bool = False) -> HeartbeatAnswer:
        """Send a heartbeat; with `is_lost` the answer is lost, with `is_slow` it is not applied yet."""
        request = self.request()
        if self.epoch == 0:
            self.forget()
        answer = self.world.heartbeat(request)
        if is_lost:
            self.is_full = True
        else:
            self.follow(answer, request)
            if not is_slow:
                self.apply()
        return answer

    def forget(self) -> None:
        """Use no partition, and join with the next heartbeat."""
        self.epoch, self.owned, self.wanted, self.is_full = 0, {}, None, True

    def follow(self, answer: HeartbeatAnswer, request: HeartbeatRequest) -> None:
        if answer.error in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            self.forget()
        elif answer.error is not ErrorCode.NONE:
            self.is_full = True
        else:
            self.epoch, self.is_full = answer.member_epoch, False
            self.reported = request.owned if request.owned is not None else self.reported
            if answer.assignment is not None:
                self.wanted = dict(answer.assignment)

    def apply(self) -> None:
        """Revoke what the newest answer does not contain, and begin to use the rest."""
        if self.wanted is not None:
            self.owned, self.wanted = self.wanted, None

    def leave(self, *, for_short: bool = False) -> HeartbeatAnswer:
        epoch = -2 if for_short else -1
        answer = self.world.heartbeat(HeartbeatRequest(self.member_id, epoch, self.instance_id))
        self.forget()
        return answer
