"""A streams group over a log in memory, and clients that behave as Kafka Streams does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ponor_broker.groups.instructions import SetTimer, Timer
from ponor_broker.groups.outcome import TimerInstruction
from ponor_broker.groups.streams.assignment import NO_TASKS, TaskId, Tasks
from ponor_broker.groups.streams.configured_topology import StatusCode
from ponor_broker.groups.streams.events import Outcome, StreamsAnswer, StreamsHeartbeat
from ponor_broker.groups.streams.membership import StreamsMembership
from ponor_broker.groups.streams.record_codec import decode_streams_entry, encode_streams_entry
from ponor_broker.groups.streams.settings import StreamsSettings
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import at_once

from services.broker.tests.consumer_kit import MemoryTopics

GROUP = "app"
SETTINGS = StreamsSettings(
    session_timeout_ms=45_000,
    assignment_interval_ms=1_000,
    initial_delay_ms=0,
    members_max=100,
    standby_replicas=0,
)
COMPACT = (("cleanup.policy", "compact"),)
WORD_COUNT = Topology(
    0,
    (
        Subtopology("0", source_topics=("lines",), repartition_sinks=("app-by-word",)),
        Subtopology(
            "1",
            repartition_sources=(InternalTopic("app-by-word"),),
            changelogs=(InternalTopic("app-counts", configs=COMPACT),),
        ),
    ),
)


def tasks(subtopology_id: str, *partitions: int) -> frozenset[TaskId]:
    """Return tasks of one subtopology."""
    return frozenset(TaskId(subtopology_id, partition) for partition in partitions)


class NoCreator:
    """A creator for groups that create no topics."""

    async def ensure(self, name: str, *, partitions: int) -> None:
        raise AssertionError(name)

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        raise AssertionError(name)


class StreamsWorld:
    """One group: its log, its timers, and a clock."""

    def __init__(self, topics: MemoryTopics, settings: StreamsSettings = SETTINGS) -> None:
        self.topics = topics
        self.settings = settings
        self.log: dict[bytes, bytes] = {}
        self.now_ms = 1_000_000
        self.refuses = False
        self.room_bytes = 1 << 30
        self.restart()

    def restart(self) -> None:
        """Load the group from its log."""
        self.timers: dict[Timer, int] = {}
        self.group = StreamsMembership(GROUP, self.settings, self.topics, self._admits)
        for key, value in self.log.items():
            self.group.contents.put(decode_streams_entry(int.from_bytes(key[:2], "big"), key, value))
        self._set(self.group.restored())

    def _admits(self, more_bytes: int) -> bool:
        return more_bytes <= 0 or more_bytes <= self.room_bytes

    def _set(self, timers: Sequence[TimerInstruction]) -> None:
        for each in timers:
            if isinstance(each, SetTimer):
                self.timers[each.timer] = self.now_ms + each.delay_ms
            else:
                self.timers.pop(each.timer, None)

    def run(self, outcome: Outcome) -> bool:
        """Write the records of an event, or refuse them."""
        if self.refuses and outcome.draft.entries:
            self.group.take_back(outcome)
            self.group.contents.validate()
            return False
        for entry in outcome.draft.entries:
            key, value = encode_streams_entry(entry)
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value
        self._set(outcome.timers)
        self.group.contents.validate()
        return True

    def beat(self, request: StreamsHeartbeat) -> StreamsAnswer | None:
        """Send a heartbeat; None if the log refuses."""
        outcome = self.group.heartbeat(request, self.now_ms)
        return outcome.answer if self.run(outcome) else None

    def work(self) -> Iterator[None]:
        """Compute the target of a large group in steps."""
        while self.group.needs_target:
            computation = self.group.begin_computation()
            yield
            result = at_once(computation.steps)
            for part in self.group.installation(computation, result, self.now_ms):
                if not self.run(part):
                    self._set(self.group.retry_assignment(1_000))
                    return
                yield

    def pass_ms(self, ms: int) -> None:
        """Let time pass; fire due timers."""
        until_ms = self.now_ms + ms
        while due := [timer for timer, at_ms in self.timers.items() if at_ms <= until_ms]:
            timer = min(due, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(timer))
            if not self.run(self.group.timer_fired(timer, self.now_ms)):
                self.timers[timer] = self.now_ms + 1_000
        self.now_ms = until_ms


@dataclass
class Client:
    """A member with its tasks. It revokes at once, unless `is_slow`."""

    world: StreamsWorld
    member_id: str
    process_id: str = ""
    topology: Topology = WORD_COUNT
    epoch: int = 0
    owned: Tasks = NO_TASKS
    answer: StreamsAnswer | None = None
    endpoint_epoch: int = 0
    extra: dict[str, object] = field(default_factory=dict)

    def beat(self, *, is_lost: bool = False, is_slow: bool = False) -> StreamsAnswer | None:
        """Send a heartbeat and apply its answer."""
        request = StreamsHeartbeat(
            self.member_id,
            self.epoch,
            endpoint_epoch=self.endpoint_epoch,
            owned=self.owned,
            process_id=self.process_id or self.member_id,
            rebalance_timeout_ms=5_000,
        )
        if self.epoch == 0:
            request = replace(request, topology=self.topology, owned=NO_TASKS)
        answer = self.world.beat(replace(request, **self.extra))  # type: ignore[arg-type]
        if answer is None or is_lost:
            return answer
        self.answer = answer
        if answer.error in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            self.epoch, self.owned = 0, NO_TASKS
        elif answer.error is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.tasks is not None and not is_slow:
                self.owned = answer.tasks
        return answer

    def leave(self) -> StreamsAnswer | None:
        """Leave the group."""
        return self.world.beat(StreamsHeartbeat(self.member_id, -1))

    @property
    def statuses(self) -> list[StatusCode]:
        """Codes of the last answer."""
        assert self.answer is not None
        return [status.code for status in self.answer.statuses]


def settle(*clients: Client) -> None:
    """Send heartbeats until the assignments no longer change."""
    for _ in range(6):
        for client in clients:
            client.beat()
        clients[0].world.pass_ms(1_000)
