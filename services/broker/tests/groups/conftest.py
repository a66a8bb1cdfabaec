"""Scenarios of the group state machine, and a broker around a coordinator in virtual time with partitions in
memory.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from uuid import UUID

import pytest
from ponor_broker.coordination.ports import PartitionCallback
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.events import JoinRequest, LeaveRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import (
    Answer,
    AnswerBody,
    CancelTimer,
    Instruction,
    JoinAnswer,
    LeaveAnswer,
    SetTimer,
    SyncAnswer,
    Timer,
    WriteGroup,
)
from ponor_broker.groups.member import JoinProtocol, RequestId
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.records import GroupRecord
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemRandomness
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.coordination_kit import Address, MemoryPartition, VirtualClock
from services.broker.tests.serving_kit import Permission
from services.broker.tests.share_kit import MemoryPersister

STEP_PATTERN = re.compile(r"^(?P<action>.*?)\s*->\s*(?P<outcome>.*)$")


class Story:
    """Each line is `what happens -> what follows; what follows`; nothing more may follow, and in this order.

    Clients have names: `a`. The member ids that they are given are `a.1`, `a.2`, ...; a client uses the id it
    got last, or the one written out (`a.1 beats`). `a joins static` uses its name as the instance id. Time
    passes by `3000 ms`. The disk answers at once, unless the story says `disk is slow`; then `disk writes`
    and `disk fails` end the oldest write.
    """

    def __init__(self, settings: GroupSettings | None = None, restored: GroupRecord | None = None) -> None:
        self.membership = Membership(settings or GroupSettings())
        self.now_ms = 0
        self.timers: dict[Timer, int] = {}
        self.waiting: dict[RequestId, str] = {}
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.written: list[GroupRecord] = []
        self._id_counts: dict[str, int] = {}
        self._requests = 0
        self._slow_writes: list[int] | None = None
        self._followed: list[str] = []
        if restored is not None:
            self._run(self.membership.restore(restored))
            for row in restored.members:
                client = row.member_id.split(".")[0]
                self.ids[client], self.generations[client] = row.member_id, restored.generation

    def tell(self, text: str) -> None:
        for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
            match = STEP_PATTERN.match(line)
            assert match, f"line {number} has no outcome: {line}"
            self._followed = []
            self._act(match["action"].split())
            self.membership.validate()
            expected = (
                [] if match["outcome"] == "nothing" else [o.strip() for o in match["outcome"].split(";")]
            )
            assert self._followed == expected, f"line {number}: {line}"

    # --- what happens

    def _act(self, words: list[str]) -> None:
        who, verb, *rest = words
        if verb == "ms":
            self._pass_time(int(who))
        elif who == "disk":
            self._disk(verb)
        elif verb == "joins":
            self._run(self.membership.join(self._join_request(who, rest)))
        elif verb == "syncs":
            plan = dict(word.split("=") for word in rest)
            request = SyncRequest(
                self._claim(who),
                None,
                None,
                {self.ids[client]: share.encode() for client, share in plan.items()},
                self._number(who),
            )
            self._run(self.membership.sync(request))
        elif verb == "beats":
            error, instructions = self.membership.heartbeat(self._claim(who))
            self._followed.append(f"{who}: {'fine' if error is ErrorCode.NONE else error.name}")
            self._run(instructions)
        elif verb == "leaves":
            claims = tuple(self._claim(client) for client in [who, *rest])
            self._run(self.membership.leave(LeaveRequest(claims, self._number(who))))
        elif verb == "evicts":
            claims = tuple(MemberClaim("", instance) for instance in rest)
            self._run(self.membership.leave(LeaveRequest(claims, self._number(who))))
        elif verb == "commits":
            claim = MemberClaim("") if "alone" in rest else self._claim(who)
            error, instructions = self.membership.commit(claim)
            self._followed.append(f"{who}: {'may commit' if error is ErrorCode.NONE else error.name}")
            self._run(instructions)
        else:
            raise AssertionError(f"unknown step: {' '.join(words)}")

    def _join_request(self, who: str, words: list[str]) -> JoinRequest:
        options = dict(word.split("=") for word in words if "=" in word)
        client = who.split(".", maxsplit=1)[0]
        version = int(options.get("version", 9))
        member_id = who if "." in who else self.ids.get(who, "")
        if "anew" in words or member_id.startswith("none."):
            member_id = ""
        self._id_counts[client] = self._id_counts.get(client, 0) + 1
        return JoinRequest(
            member_id=member_id,
            instance_id=client if "static" in words else None,
            client_id=client,
            client_host="127.0.0.1",
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(
                JoinProtocol(name, options.get("topics", "t").encode())
                for name in options.get("offers", "range").split(",")
            ),
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
            new_member_id=f"{client}.{self._id_counts[client]}",
            request=self._number(who),
        )

    def _number(self, who: str) -> RequestId:
        self._requests += 1
        request = RequestId(self._requests)
        self.waiting[request] = who
        return request

    def _claim(self, who: str) -> MemberClaim:
        client, _, at = who.partition("@")
        name = client.split(".")[0]
        member_id = client if "." in client else self.ids.get(client, "unknown")
        instance_id = name if self._is_static(name) else None
        return MemberClaim(member_id, instance_id, int(at) if at else self.generations.get(name, -1))

    def _is_static(self, name: str) -> bool:
        return any(member.instance_id == name for member in self.membership.members())

    def _pass_time(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while due := [(at, i, timer) for i, (timer, at) in enumerate(self.timers.items()) if at <= until_ms]:
            at_ms, _, timer = min(due, key=lambda entry: entry[:2])
            self.now_ms = max(self.now_ms, at_ms)
            del self.timers[timer]
            self._run(self.membership.timer_fired(timer))
        self.now_ms = until_ms

    def _disk(self, verb: str) -> None:
        if verb == "is":
            self._slow_writes = []
            return
        assert self._slow_writes, "no write is under way"
        error = ErrorCode.NONE if verb == "writes" else ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._run(self.membership.written(self._slow_writes.pop(0), error))

    # --- what follows

    def _run(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Answer(request, body):
                    who = self.waiting.pop(request)  # KeyError: answered twice
                    self._followed.append(f"{who}: {self._tell_answer(who, body)}")
                case SetTimer(timer, delay_ms):
                    self.timers[timer] = self.now_ms + delay_ms
                case CancelTimer(timer):
                    self.timers.pop(timer, None)
                case WriteGroup(write_id, record):
                    self._write(write_id, record)

    def _write(self, write_id: int, record: GroupRecord) -> None:
        shares = " ".join(f"{row.member_id}={row.assignment.decode()}" for row in record.members)
        self._followed.append(f"kept: generation {record.generation} {shares or 'without members'}")
        self.written.append(record)
        if self._slow_writes is None:
            self._run(self.membership.written(write_id, ErrorCode.NONE))
        else:
            self._slow_writes.append(write_id)

    def _tell_answer(self, who: str, body: AnswerBody) -> str:
        client = who.split(".", maxsplit=1)[0].split("@", maxsplit=1)[0]
        match body:
            case JoinAnswer(error=ErrorCode.NONE):
                self.ids[client], self.generations[client] = body.member_id, body.generation
                told = " ".join(f"{row.member_id}/{row.metadata.decode()}" for row in body.members)
                role = f"leads {told}" if body.members else f"follows {body.leader}"
                skip = ", plans nothing" if body.skip_assignment else ""
                return f"in generation {body.generation} by {body.protocol_name}, {role}{skip}"
            case JoinAnswer(error=error, member_id=member_id):
                if error is ErrorCode.MEMBER_ID_REQUIRED:
                    self.ids[client] = member_id
                return error.name
            case SyncAnswer(error, _, _, assignment):
                return f"gets {assignment.decode()}" if error is ErrorCode.NONE else error.name
            case LeaveAnswer(results):
                return " ".join("gone" if error is ErrorCode.NONE else error.name for _, error in results)


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def quick_story() -> Story:
    """A story without initial delay and without required member ids."""
    return Story(GroupSettings(group_initial_rebalance_delay_ms=0))


@pytest.fixture(scope="session")
def story_type() -> type[Story]:
    return Story


class BrokerWorld:
    """The broker around a coordinator: partitions, topics, brokers. A restart creates a new coordinator over
    the same logs.
    """

    def __init__(self, settings: GroupSettings, *, wait_ms_max: int = 0) -> None:
        """`wait_ms_max`: how long requests wait for a partition that is not loaded; most stories test the
        answers without it.
        """
        self.settings = replace(settings, coordinator_wait_ms_max=wait_ms_max)
        self.clock = VirtualClock()
        self.permission = Permission(self.clock)
        self.logs: dict[int, list[bytearray]] = {n: [] for n in range(settings.offsets_topic_partitions)}
        self.open: dict[int, MemoryPartition] = {}
        self.led: set[int] = set()
        self.coming: set[int] = set()
        self.new: set[int] = set()
        self.topics: dict[str, tuple[UUID, int]] = {"t": (UUID(int=1), 4)}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.persister = MemoryPersister()
        self.failures: list[BaseException] = []
        self.created: list[tuple[str, int, dict[str, str]]] = []
        self.refusals: dict[str, str] = {}
        self._opened: list[PartitionCallback] = []
        self._closed: list[PartitionCallback] = []

    async def start(self) -> GroupCoordinator:
        self.telemetry = Telemetry()
        runtime = Runtime(
            clock=self.clock,
            randomness=SystemRandomness(),
            disk=None,  # type: ignore[arg-type]  # groups touch neither
            network=None,  # type: ignore[arg-type]
            telemetry=self.telemetry,
            fail_stop=lambda _, error: self.failures.append(error),
        )
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.failures.append(
                context.get("exception") or RuntimeError(context["message"])
            )
        )
        self._opened, self._closed = [], []
        self.coordinator = GroupCoordinator(
            self,
            self,
            self,
            self.permission.serving,
            node_id=65_537,
            runtime=runtime,
            settings=self.settings,
            persister=self.persister,
            group_configs=lambda group_id: self.group_configs.get(group_id, {}),
        )
        self.coordinator.start()
        if OFFSETS_TOPIC in self.topics:
            for index in self.logs:
                self.open_partition(index)
        await self.clock.settle()
        return self.coordinator

    async def kill(self) -> None:
        """Stop as by SIGKILL: no answers, and nothing more becomes durable."""
        for partition in self.open.values():
            partition._under_way.clear()
        self.open.clear()
        await self.coordinator.shards.tasks.close()

    def open_partition(self, index: int) -> MemoryPartition:
        partition = self.open[index] = MemoryPartition(index, self.logs[index])
        for callback in self._opened:
            callback(partition)
        return partition

    def close_partition(self, index: int) -> None:
        partition = self.open.pop(index)
        for callback in self._closed:
            callback(partition)

    def take_back(self, index: int) -> None:
        """Begin and cancel a move: close the partition to its coordinator and open it again, with its appends
        in flight.
        """
        for callbacks in (self._closed, self._opened):
            for callback in callbacks:
                callback(self.open[index])

    # The ports

    async def ensure(self, name: str, *, partitions: int) -> None:
        await self.clock.sleep(0.05)
        self.topics[name] = (UUID(int=99), partitions)
        for index in range(partitions):
            self.open_partition(index)

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Create a topic of an application, or fail as `refusals` says."""
        assert replication_factor
        self.created.append((name, partitions, dict(configs)))
        await self.clock.sleep(0.05)
        if name in self.refusals:
            raise RuntimeError(self.refusals[name])
        self.topics[name] = (UUID(int=1_000 + len(self.created)), partitions)
        self.coordinator.topics_changed()

    def get(self, _name: str, index: int) -> MemoryPartition | None:
        return self.open.get(index)

    def follow(self, _topic: str, on_opened: PartitionCallback, on_closed: PartitionCallback) -> None:
        self._opened.append(on_opened)
        self._closed.append(on_closed)
        for partition in self.open.values():
            on_opened(partition)

    def topic_id(self, name: str) -> UUID | None:
        return self.topics[name][0] if name in self.topics else None

    @property
    def version(self) -> int:
        return len(self.topics)

    def names(self) -> list[str]:
        return sorted(self.topics)

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, (known, _) in self.topics.items() if known == topic_id), None)

    def partition_count(self, name: str) -> int | None:
        return self.topics[name][1] if name in self.topics else None

    def leader(self, topic: str, index: int) -> Address | None:
        assert topic == OFFSETS_TOPIC
        return Address(65_537, "127.0.0.1", 9092) if self.is_led_by(topic, index, 65_537) else None

    def is_led_by(self, topic: str, index: int, node_id: int) -> bool:
        assert (topic, node_id) == (OFFSETS_TOPIC, 65_537)
        return index in self.open or index in self.led

    def is_moving_to(self, topic: str, index: int, node_id: int) -> bool:
        assert (topic, node_id) == (OFFSETS_TOPIC, 65_537)
        return index in self.coming

    def is_new(self, topic: str, index: int) -> bool:
        assert topic == OFFSETS_TOPIC
        return index in self.new


@pytest.fixture
async def world() -> AsyncIterator[BrokerWorld]:
    """A broker whose `__consumer_offsets` (4 partitions) exists."""
    world = BrokerWorld(GroupSettings(offsets_topic_partitions=4))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 4)
    await world.start()
    yield world
    await world.coordinator.close()
    assert world.failures == []


@pytest.fixture(scope="session")
def world_type() -> type[BrokerWorld]:
    return BrokerWorld


@pytest.fixture(scope="session")
def clock_type() -> type[VirtualClock]:
    return VirtualClock
