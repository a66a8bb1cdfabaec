"""The shards of a coordinator: one for each partition of its internal topic that is open here.

`Shards` loads a shard when its partition opens, and closes the shard with the partition. It finds the
partition, the leader and the shard of a key. Requests wait until their shard is loaded. All keys are refused
while this broker must not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ponor_kafka.errors import ErrorCode
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import Steps, in_turns
from s3stream.errors import S3StreamError

from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.coordination.ports import (
    BrokerAddress,
    InternalPartition,
    InternalPartitions,
    TopicCreator,
    TopicDirectory,
)
from ponor_broker.coordination.readiness import Readiness
from ponor_broker.coordination.record_log import RecordLogCorruptError
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.serving import Serving

_LOG = logging.getLogger(__name__)
_DONE: Final = object()
RETRY_S: Final = 1.0
"""Pause before failed work of a shard is repeated."""
ROWS_PER_STEP: Final = 1_000
"""Keys that one step of a request visits: about 4 ms."""


class Shard(Protocol):
    """The coordinator's state of one partition: created when the partition opens, usable between `load` and
    `close`.
    """

    @property
    def is_loaded(self) -> bool: ...

    def __len__(self) -> int:
        """Return the number of keys."""
        ...

    async def load(self) -> None:
        """Restore from the log; may be called again after an error.

        Raises:
            S3StreamError: the log cannot be read now.
            RecordLogCorruptError: the log is damaged.
        """
        ...

    def close(self, error: ErrorCode) -> Steps[None]:
        """Answer all waiting requests with an error and free memory. No request may follow."""
        ...


S = TypeVar("S", bound=Shard)


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The parts of the broker that a coordinator uses."""

    partitions: InternalPartitions
    creator: TopicCreator
    topics: TopicDirectory
    serving: Serving
    node_id: int
    runtime: Runtime


@dataclass(frozen=True, slots=True)
class CoordinatedTopic:
    """The topic of a coordinator.

    Attributes:
        name: the internal topic.
        keys: the plural noun for its keys, for messages.
        partitions: the topic gets this number of partitions if this broker creates it.
        wait_ms_max: longest wait of a request until its shard is loaded; 0: no wait.
    """

    name: str
    keys: str
    partitions: int
    wait_ms_max: int


class Shards(Generic[S]):
    """The shards of one coordinator; call `start` before partitions open, `close` before they close."""

    def __init__(
        self,
        topic: CoordinatedTopic,
        ports: BrokerPorts,
        *,
        create: Callable[[InternalPartition], S],
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`loaded` is called after each load of a shard."""
        self._topic = topic
        self._partitions = ports.partitions
        self._creator = ports.creator
        self._topics = ports.topics
        self._serving = ports.serving
        self._node_id = ports.node_id
        self._clock = ports.runtime.clock
        self._create = create
        self._loaded = loaded
        telemetry = ports.runtime.telemetry
        self._keys_loaded = telemetry.counter("ponor_coordinator_keys_loaded_total", topic=topic.name)
        self._load_duration = telemetry.histogram("ponor_coordinator_load_seconds", topic=topic.name)
        self.tasks = BackgroundTasks(ports.runtime.fail_stop)
        self.timers = TimerQueue(self._clock, self.tasks)
        self._readiness = Readiness(self.timers, topic.wait_ms_max)
        self.by_index: dict[int, S] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._creation: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._serving.listeners.append(self._permission_changed)

    @property
    def refusal(self) -> ErrorCode | None:
        """The error for every key while this broker must not answer; None otherwise."""
        return None if self._serving.refusal is None else ErrorCode.NOT_COORDINATOR

    def _permission_changed(self, withdrawn: bool) -> None:
        """Pause the timers while this broker refuses requests, so that refused clients miss no deadline."""
        if withdrawn:
            self.timers.pause_all()
        else:
            self.timers.resume_all()
        self._readiness.changed()

    # --- life

    def start(self) -> None:
        """Follow the partitions of the topic that open and close here."""
        self._partitions.follow(self._topic.name, self._opened, self._closed)

    async def close(self) -> None:
        """Answer every waiting request with NOT_COORDINATOR and stop all timers and tasks. Idempotent."""
        self._readiness.changed()
        while self.by_index or self._closing:
            closing = [shard.close(ErrorCode.NOT_COORDINATOR) for shard in self.by_index.values()]
            self.by_index.clear()
            self._readiness.changed()
            for steps in closing:
                await in_turns(steps)
            if self._closing:
                await asyncio.wait(self._closing)
        await self.tasks.close()

    def _opened(self, partition: InternalPartition) -> None:
        if self.tasks.is_closed:
            return  # the partition opened after the coordinator was closed: its keys are never served
        name = f"{self._topic.name}-{partition.index}"
        assert partition.index not in self.by_index, f"{name} was opened twice"
        shard = self.by_index[partition.index] = self._create(partition)
        self._loads[partition.index] = self.tasks.spawn(self._load(shard, name), f"load {name}")

    def _closed(self, partition: InternalPartition) -> None:
        load = self._loads.pop(partition.index, None)
        if load is not None:
            load.cancel()
        shard = self.by_index.pop(partition.index, None)
        if shard is not None:
            steps = shard.close(ErrorCode.NOT_COORDINATOR)
            if next(steps, _DONE) is not _DONE:
                task = self.tasks.spawn(in_turns(steps), f"close {self._topic.name}-{partition.index}")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._readiness.changed()

    def reopen(self, partition: InternalPartition, shard: S) -> None:
        """Load a shard again, because its memory does not agree with its log."""
        if self.by_index.get(partition.index) is shard and not self.tasks.is_closed:
            self._closed(partition)
            self._opened(partition)

    async def _load(self, shard: S, name: str) -> None:
        started_ns = self._clock.monotonic_ns()
        while not shard.is_loaded:
            try:
                await shard.load()
            except (S3StreamError, RecordLogCorruptError) as error:
                # Requests for its keys get COORDINATOR_LOAD_IN_PROGRESS in the meantime; other shards still
                # answer.
                _LOG.error("loading the %s of %s failed, retrying: %s", self._topic.keys, name, error)
                await self._clock.sleep(RETRY_S)
        self._loaded()
        self._readiness.changed()
        elapsed_us = (self._clock.monotonic_ns() - started_ns) // 1_000
        self._keys_loaded.add(len(shard))
        self._load_duration.record(elapsed_us)
        if len(shard):
            _LOG.info("%s: %d %s loaded in %d ms", name, len(shard), self._topic.keys, elapsed_us // 1_000)

    def loaded(self) -> list[S]:
        """Return every loaded shard."""
        return [shard for shard in self.by_index.values() if shard.is_loaded]

    @property
    def is_whole(self) -> bool:
        """Whether no shard is being loaded."""
        return all(shard.is_loaded for shard in self.by_index.values())

    # --- location of a key

    def partition_of(self, key: str) -> int:
        """Return the partition of the topic that stores a key."""
        count = self._topics.partition_count(self._topic.name) or self._topic.partitions
        return partition_for(key, count)

    async def find(self, keys: Sequence[str]) -> list[BrokerAddress | None]:
        """Return the broker that coordinates each key; None for a key without a coordinator yet (the client
        retries).

        The first call creates the topic, and waits at most `wait_ms_max` for it.
        """
        name = self._topic.name
        if self.refusal is None and self._topics.partition_count(name) is None:
            self.create_topic()
            await self._readiness.wait(lambda: self._creation is not None and self.refusal is None)
        if self._topics.partition_count(name) is None:
            return [None] * len(keys)
        # One wait for all keys together, because a request may name any number of them.
        indexes = await in_turns(self._partitions_of(keys))
        distinct = set(indexes)
        await self._readiness.wait(lambda: any(map(self._is_new, distinct)))
        await self._readiness.wait(lambda: any(map(self._is_undecided, distinct)))
        if self.refusal is not None:
            return [None] * len(keys)
        leaders = {index: self._topics.leader(name, index) for index in distinct}
        return [leaders[index] for index in indexes]

    def _partitions_of(self, keys: Iterable[str]) -> Steps[list[int]]:
        indexes: list[int] = []
        for number, key in enumerate(keys, 1):
            indexes.append(self.partition_of(key))
            if number % ROWS_PER_STEP == 0:
                yield
        return indexes

    def create_topic(self) -> None:
        """Begin to create the topic if this broker may answer and does not create it already."""
        if self._creation is None and self.refusal is None and not self.tasks.is_closed:
            self._creation = self.tasks.spawn(self._create_topic(), f"create {self._topic.name}")

    async def _create_topic(self) -> None:
        try:
            await self._creator.ensure(self._topic.name, partitions=self._topic.partitions)
        except Exception as error:  # noqa: BLE001 - any error: the next request retries
            _LOG.warning("creating %s failed: %s", self._topic.name, error)
        finally:
            self._creation = None
            self._readiness.changed()

    def _is_new(self, index: int) -> bool:
        """Return whether no broker has opened the partition yet."""
        if self.refusal is not None or self.tasks.is_closed:
            return False
        return self._topics.is_new(self._topic.name, index)

    def image_changed(self) -> None:
        """Make waiting requests check again, because topics, partitions or brokers changed."""
        self._readiness.changed()

    async def decided(self, keys: Iterable[str]) -> None:
        """Wait until the shards of these keys are loaded, at most `wait_ms_max`. Do not wait for partitions
        that this broker neither leads nor will lead soon.
        """
        indexes = set(await in_turns(self._partitions_of(keys)))
        await self._readiness.wait(lambda: any(map(self._is_undecided, indexes)))

    def _is_undecided(self, index: int) -> bool:
        if self.refusal is not None or self.tasks.is_closed:
            return False
        shard = self.by_index.get(index)
        if shard is not None:
            return not shard.is_loaded
        # The broker that sent the client here may have a newer image, which already shows this broker as
        # leader after the first open or a move.
        here = (self._topic.name, index, self._node_id)
        return self._topics.is_led_by(*here) or self._topics.is_moving_to(*here)

    def of(self, key: str) -> S | ErrorCode:
        """Return the loaded shard of a key, or the error that its requests get."""
        if self.refusal is not None:
            return self.refusal
        index = self.partition_of(key)
        shard = self.by_index.get(index)
        if shard is None:
            # This broker leads the partition and has not opened it yet, for instance directly after the
            # topic was created: the client asked the right broker and must wait.
            is_ours = self._topics.is_led_by(self._topic.name, index, self._node_id)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR
        return shard if shard.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
