"""`SharePersister` over requests to share coordinators.

A call waits in the queue of its group at the broker that coordinates its share partition (`_Lane`). Calls of
one group and kind that wait together share a request. A call whose coordinator moves, loads or cannot be
reached waits in `Retries`, and then looks up the coordinator again, until its deadline.

A request that was given up may still arrive. This is safe: a late write merges nothing that is not in the
state, and epochs fence the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from ponor_kafka.errors import ErrorCode, error_of
from ponor_kafka.internal_topics import SHARE_STATE_TOPIC
from ponor_kafka.message import Message, Struct
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import turn

from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.coordination.record_format import fits_record
from ponor_broker.coordination.retries import Retries
from ponor_broker.coordination.share_persister import (
    DeliveryState,
    SharePartitionKey,
    ShareState,
    StateBatch,
    StateSummary,
)
from ponor_broker.peers.connection_pool import PeerConnections, PeerUnavailableError
from ponor_broker.peers.request_port import RequestPort, UnansweredError
from ponor_broker.share_state import state_requests as requests
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_broker.share_state.state_requests import APIS, BATCH_BYTES, ROW_BYTES, ShareStateApis, StateApi

_LOG: Final = logging.getLogger(__name__)
REQUEST_BYTES_MAX: Final = 64 << 10
"""A request gets no more rows above this size, because it is encoded in one event-loop turn."""
ROUTED_PER_TURN_MAX: Final = 500
CONNECTIONS_PER_BROKER: Final = 4
"""A broker processes the requests of one connection one after the other. A request belongs to one group, so
that with one connection, the groups would wait for each other."""
LOCAL_REQUESTS_MAX: Final = 64
"""Requests to the coordinator of this broker that are in flight."""
CALL_BYTES: Final = 600
"""Memory of a waiting call without its group id and batches."""
MEMORY_PER_BATCH_BYTE: Final = 10
NO_LEADER: Final = -1
_RETRIED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        # The coordinator's image may lag behind this broker's.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_STATES: Final = {int(state): state for state in DeliveryState}
_Queue: TypeAlias = tuple[StateApi, str]
"""Calls of one API for one group, which can share a request."""


class StateTopics(Protocol):
    """Topics and leaders, from the image."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic."""
        ...

    def partition_count(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        ...

    def leader_id(self, topic: str, index: int) -> int | None:
        """Return the node id of a partition's leader; −1 if it has none now; None if there is no such
        partition.
        """
        ...


class CoordinatorPersister:
    """Implements `SharePersister`; call `start` before and `close` after use."""

    def __init__(
        self,
        peers: Sequence[PeerConnections],
        topics: StateTopics,
        local: ShareStateApis,
        runtime: Runtime,
        *,
        node_id: int,
        settings: ShareStateSettings,
        create_topic: Callable[[], object],
    ) -> None:
        """Create a persister.

        Args:
            peers: `CONNECTIONS_PER_BROKER` pools that nothing else uses.
            topics: the current image.
            local: the coordinator of this broker.
            runtime: clock and randomness of the back-off.
            node_id: id of this broker.
            settings: timeout and memory bound of calls.
            create_topic: begins to create `__share_group_state` if it does not exist; called repeatedly.
        """
        self._topics = topics
        self._node_id = node_id
        self._settings = settings
        self._create_topic = create_topic
        self._ports = [
            {
                api: RequestPort(
                    pool, api.local(local), node_id=node_id, version=api.version, answer=api.answer
                )
                for api in APIS
            }
            for pool in peers
        ]
        self._peers = peers
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._retries: Retries[_Call] = Retries(runtime)
        self._lanes: dict[int, _Lane] = {}
        self._open: dict[_Call, None] = {}
        self._waiting_bytes = 0
        telemetry = runtime.telemetry
        telemetry.gauge("ponor_share_state_calls_waiting", lambda: len(self._open))
        self._sent = {
            api: telemetry.counter("ponor_share_state_requests_total", request=api.name) for api in APIS
        }
        self._repeated = telemetry.counter("ponor_share_state_request_retries_total")

    # --- life

    def start(self) -> None:
        """Start the task that looks up coordinators."""
        self._tasks.spawn(self._route_due(), "share state requests")

    def image_changed(self) -> None:
        """Close connections to brokers that were removed or fenced."""
        for pool in self._peers:
            pool.image_changed()

    async def close(self) -> None:
        """End every call with COORDINATOR_NOT_AVAILABLE. Idempotent."""
        for call in list(self._open):
            call.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await self._tasks.close()
        for pool in self._peers:
            await pool.close()

    # --- calls

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> ErrorCode:
        """As `SharePersister.initialize`."""
        row = requests.initialize_row(key, state_epoch, start_offset)
        return _error_of(await self._call(requests.INITIALIZE, key, row))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState | ErrorCode:
        """As `SharePersister.read`."""
        found = await self._call(requests.READ, key, requests.read_row(key, leader_epoch))
        if isinstance(found, ErrorCode):
            return found
        batches = [
            StateBatch(one.first_offset, one.last_offset, _STATES[one.delivery_state], one.delivery_count)
            for one in found.state_batches
        ]
        return ShareState(found.state_epoch, found.start_offset, batches)

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> ErrorCode:
        """As `SharePersister.write`."""
        row = requests.write_row(
            key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches
        )
        return _error_of(await self._call(requests.WRITE, key, row, BATCH_BYTES * len(batches)))

    async def delete(self, key: SharePartitionKey) -> ErrorCode:
        """As `SharePersister.delete`."""
        return _error_of(await self._call(requests.DELETE, key, requests.delete_row(key)))

    async def summary(self, key: SharePartitionKey) -> StateSummary | ErrorCode:
        """As `SharePersister.summary`."""
        found = await self._call(requests.SUMMARY, key, requests.summary_row(key))
        if isinstance(found, ErrorCode):
            return found
        return StateSummary(
            found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count
        )

    async def _call(
        self, api: StateApi, key: SharePartitionKey, row: Struct, batches_bytes: int = 0
    ) -> Any | ErrorCode:
        """Return the row of the answer, or an error."""
        if not key.group_id or not fits_record(key.group_id):
            return ErrorCode.INVALID_REQUEST
        size_bytes = CALL_BYTES + 4 * len(key.group_id) + MEMORY_PER_BATCH_BYTE * batches_bytes
        is_full = self._waiting_bytes + size_bytes > self._settings.share_state_waiting_bytes_max
        if self._tasks.is_closed or (self._open and is_full):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        call = _Call(api, key, row, ROW_BYTES + batches_bytes)
        self._open[call] = None
        self._waiting_bytes += size_bytes
        self._retries.add_now(call)
        try:
            async with asyncio.timeout(self._settings.share_state_request_timeout_ms / 1_000):
                return await call.answer
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        finally:
            # A queue may still contain the call; it is skipped there.
            call.answer.cancel()
            self._waiting_bytes -= size_bytes
            del self._open[call]

    # --- routes

    async def _route_due(self) -> None:
        while True:
            await self._retries.wait()
            for call in self._retries.take(ROUTED_PER_TURN_MAX):
                if not call.is_ended:
                    self._route(call)
            await turn()

    def _route(self, call: _Call) -> None:
        """Put a call into the queue of its coordinator."""
        if self._topics.topic_name(call.key.topic_id) is None:
            call.end(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        count = self._topics.partition_count(SHARE_STATE_TOPIC)
        if not count:
            self._create_topic()
            self._retry(call)
            return
        node_id = self._topics.leader_id(SHARE_STATE_TOPIC, partition_for(str(call.key), count))
        if node_id is None or node_id == NO_LEADER:
            self._retry(call)
            return
        lane = self._lanes.get(node_id)
        if lane is None:
            workers_max = LOCAL_REQUESTS_MAX if node_id == self._node_id else len(self._ports)
            lane = self._lanes[node_id] = _Lane(node_id, workers_max)
        if lane.add(call):
            self._add_worker(lane)

    def _add_worker(self, lane: _Lane) -> None:
        """Let another request to the broker be in flight, if the bound allows."""
        if lane.idle:
            name = f"share state of broker {lane.node_id}"
            self._tasks.spawn(self._serve(lane, lane.idle.pop()), name)

    async def _serve(self, lane: _Lane, worker: int) -> None:
        """Send one request after the other until the queues are empty."""
        ports = self._ports[worker % len(self._ports)]
        while lane.queues:
            which = lane.next()
            sent: list[_Call] = []
            try:
                answer = await ports[which[0]].ask(lane.node_id, partial(self._build, lane, which, sent))
            except PeerUnavailableError:
                await self._retry_all(lane.queues.pop(which, ()))
            except UnansweredError as error:
                _LOG.info("a request for share state was not answered, retrying: %s", error)
                await self._retry_all(sent)
            else:
                if answer is not None:
                    self._note(sent, answer)
            await turn()
        lane.idle.append(worker)
        if len(lane.idle) == lane.workers_max and self._lanes.get(lane.node_id) is lane:
            del self._lanes[lane.node_id]

    def _build(self, lane: _Lane, which: _Queue, sent: list[_Call]) -> Message | None:
        """Return the next request of a queue, and append its calls to `sent`."""
        api, group_id = which
        sent += lane.take(which)
        if not sent:
            return None
        if which in lane.queues:
            self._add_worker(lane)
        self._sent[api].add()
        return api.build(group_id, [(call.key, call.row) for call in sent])

    def _note(self, sent: Sequence[_Call], answer: Any) -> None:
        rows = {
            (bytes(topic.topic_id), row.partition): row
            for topic in answer.results
            for row in topic.partitions
        }
        for call in sent:
            row = rows.get((call.key.topic_id.bytes, call.key.partition))
            error = ErrorCode.UNKNOWN_SERVER_ERROR if row is None else error_of(row.error_code)
            if error in _RETRIED:
                self._retry(call)
            else:
                call.end(row if error is ErrorCode.NONE else error)

    async def _retry_all(self, calls: Collection[_Call]) -> None:
        for number, call in enumerate(calls, 1):
            self._retry(call)
            if number % ROUTED_PER_TURN_MAX == 0:
                await turn()

    def _retry(self, call: _Call) -> None:
        if not call.is_ended:
            call.attempts += 1
            self._repeated.add()
            self._retries.again(call, call.attempts)


def _error_of(answer: Any | ErrorCode) -> ErrorCode:
    return answer if isinstance(answer, ErrorCode) else ErrorCode.NONE


class _Call:
    """A call that waits for its answer."""

    __slots__ = ("answer", "api", "attempts", "key", "row", "size_bytes")

    def __init__(self, api: StateApi, key: SharePartitionKey, row: Struct, size_bytes: int) -> None:
        self.api = api
        self.key = key
        self.row = row
        self.size_bytes = size_bytes
        self.attempts = 0
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def is_ended(self) -> bool:
        """Whether the call has its answer, or its caller has given up."""
        return self.answer.done()

    def end(self, answer: Any) -> None:
        """Answer the call, if it still waits."""
        if not self.is_ended:
            self.answer.set_result(answer)


class _Lane:
    """Calls for one broker, and the numbers of the workers that may send them."""

    def __init__(self, node_id: int, workers_max: int) -> None:
        self.node_id = node_id
        self.workers_max = workers_max
        self.idle = list(range(workers_max))
        self.queues: OrderedDict[_Queue, deque[_Call]] = OrderedDict()

    def add(self, call: _Call) -> bool:
        """Add a call; return whether its queue is new."""
        which = (call.api, call.key.group_id)
        queue = self.queues.get(which)
        if queue is None:
            self.queues[which] = deque((call,))
            return True
        queue.append(call)
        return False

    def next(self) -> _Queue:
        """Return the queue that has waited longest, and put it behind the others."""
        which = next(iter(self.queues))
        self.queues.move_to_end(which)
        return which

    def take(self, which: _Queue) -> list[_Call]:
        """Remove and return the calls of the next request: at most one for each share partition."""
        queue = self.queues.get(which, deque())
        taken: dict[SharePartitionKey, _Call] = {}
        later: list[_Call] = []
        size_bytes = 0
        while queue and len(taken) < which[0].rows_max and size_bytes < REQUEST_BYTES_MAX:
            call = queue.popleft()
            if call.is_ended:
                continue
            if call.key in taken:
                later.append(call)
                continue
            taken[call.key] = call
            size_bytes += call.size_bytes
        queue.extendleft(reversed(later))
        if not queue:
            self.queues.pop(which, None)
        return list(taken.values())
