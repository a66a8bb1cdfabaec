"""Sends the markers of ended transactions to the leaders of their partitions until each is durable.

Every marker waits in the queue of one leader (`_Lane`), or in `Retries` after a failed attempt or while its
partition has no leader. Each attempt looks up the leader again. Markers of one producer for one partition are
sent one after the other: a later one waits until the earlier one has ended.

A marker of generation 1 that arrives late could end the producer's next transaction, which has the same
epochs. A broker refuses requests of a connection that the sender has given up (`peers/connection_order.py`),
but only after it has received a request of a later connection. A marker therefore ends only when every broker
that left one of its attempts unanswered has answered a later request, or was fenced or removed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache, partial
from typing import Final, Protocol, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import Steps, TurnBudget, turn

from ponor_broker.coordination.retries import Retries
from ponor_broker.peers.connection_pool import PeerConnections, PeerGoneError, PeerUnavailableError
from ponor_broker.peers.request_port import RequestPort, UnansweredError
from ponor_broker.transactions.records import TopicPartition, by_topic

_LOG: Final = logging.getLogger(__name__)
VERSION: Final = 2
MARKERS_PER_REQUEST_MAX: Final = 1_000
ROUTED_PER_TURN_MAX: Final = 500
"""Markers whose leader is looked up in one turn of the event loop: about 2 ms."""
TURN_NS_MAX: Final = 4_000_000
"""A turn begins no further requests, and processes no further results, after this time. A request takes 5 ms.
The last result of a transaction takes 50 µs, because its coordinator writes the completion."""
_DONE: Final = object()
LOGGED_ATTEMPT: Final = 20
"""The attempt that is logged as a warning: about 15 seconds after the first."""
NO_LEADER: Final = -1

Refusals: TypeAlias = Mapping[TopicPartition, ErrorCode]
LeaderId: TypeAlias = Callable[[str, int], "int | None"]
WriteMarkers: TypeAlias = Callable[[WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]

_REFUSED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_FINAL: Final = _REFUSED | {ErrorCode.NONE}


class Markers(Protocol):
    """The outcome of a transaction, which each of its partitions gets as a marker."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def is_commit(self) -> bool: ...

    @property
    def is_generation_2(self) -> bool: ...

    @property
    def partitions(self) -> Collection[TopicPartition]: ...


class PartitionLeaders(Protocol):
    """Leaders of partitions, from the image."""

    def leader_id(self, topic: str, index: int) -> int | None:
        """Return the node id of a partition's leader; −1 if it has none now; None if there is no such
        partition.
        """
        ...


class MarkerSender:
    """Sends the markers of all shards of this broker's coordinator. The coordinator bounds their number."""

    def __init__(
        self,
        peers: PeerConnections,
        leaders: PartitionLeaders,
        local: WriteMarkers,
        runtime: Runtime,
        *,
        node_id: int,
    ) -> None:
        """Create a sender.

        Args:
            peers: connections to other brokers.
            leaders: the current image. It must never go back, because a missing partition counts as deleted.
            local: appends markers to partitions that this broker leads.
            runtime: clock and randomness of the back-off.
            node_id: id of this broker.
        """
        self._leaders = leaders
        self._node_id = node_id
        self._port = RequestPort(
            peers, local, node_id=node_id, version=VERSION, answer=WriteTxnMarkersResponse
        )
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._retries: Retries[_Marker] = Retries(runtime)
        self._turn = TurnBudget(runtime.clock, count_max=MARKERS_PER_REQUEST_MAX, duration_ns_max=TURN_NS_MAX)
        self._lanes: dict[int, _Lane] = {}
        self._jobs: dict[int, dict[_Job, None]] = {}
        self._incomplete: deque[Steps[None]] = deque()
        """Steps that add the markers of jobs. Markers of one producer are added in the order of its jobs."""
        self._newest: dict[tuple[int, TopicPartition], _Marker] = {}
        """For each producer and partition, the last marker that has not ended."""
        runtime.telemetry.gauge("ponor_transaction_markers", lambda: len(self._newest))
        self._sent = runtime.telemetry.counter("ponor_transaction_markers_sent_total")
        self._repeated = runtime.telemetry.counter("ponor_transaction_marker_retries_total")

    def start(self) -> None:
        """Start the task that sends markers."""
        self._tasks.spawn(self._route_due(), "markers to route")

    async def close(self) -> None:
        """Stop sending. No `done` is called any more."""
        for shard in list(self._jobs):
            self.cancel(shard)
        await self._tasks.close()

    def send(
        self, shard: int, coordinator_epoch: int, markers: Markers, done: Callable[[Refusals], None]
    ) -> None:
        """Send the markers of a transaction that has at least one partition.

        Args:
            shard: partition of `__transaction_state`, for `cancel`.
            coordinator_epoch: leader epoch of that partition.
            markers: what to write, and where.
            done: called once, never before this method returns, when every marker has ended: it is durable,
                its partition was deleted, or it was refused as outdated. The argument contains the refusals:
                TRANSACTION_COORDINATOR_FENCED or INVALID_PRODUCER_EPOCH. In both cases the partition has no
                open transaction of this epoch.
        """
        assert markers.partitions, "a transaction without partitions has no markers"
        job = _Job(shard, coordinator_epoch, markers, done)
        self._jobs.setdefault(shard, {})[job] = None
        steps = self._adding(job)
        if self._incomplete:
            self._incomplete.append(steps)
        elif next(steps, _DONE) is not _DONE:
            self._incomplete.append(steps)
            self._tasks.spawn(self._add_incomplete(), "markers of large transactions")

    async def _add_incomplete(self) -> None:
        while self._incomplete:
            await self._turn.wait()
            self._turn.spend()
            if next(self._incomplete[0], _DONE) is _DONE:
                self._incomplete.popleft()

    def _adding(self, job: _Job) -> Steps[None]:
        """Add the markers of a job, in steps."""
        number = 0
        for topic, indexes in by_topic(job.markers.partitions):
            for index in indexes:
                if job.is_cancelled:
                    return
                marker = _Marker(job, (topic, index))
                earlier = self._newest.get(marker.key)
                self._newest[marker.key] = marker
                if earlier is None:
                    self._retries.add_now(marker)
                else:
                    earlier.successor = marker
                number += 1
                if number % ROUTED_PER_TURN_MAX == 0:
                    yield

    def cancel(self, shard: int) -> None:
        """Send no further markers of a shard and call no `done` for it, because the shard closes.

        Other brokers may still process requests that were sent before.
        """
        for job in self._jobs.pop(shard, {}):
            job.is_cancelled = True

    async def _route_due(self) -> None:
        while True:
            await self._retries.wait()
            # Cached per turn: transactions that end together have partitions in common, and the image does
            # not change.
            leader_id = cache(self._leaders.leader_id)
            for marker in self._retries.take(ROUTED_PER_TURN_MAX):
                self._route(marker, leader_id)
            await turn()

    def _route(self, marker: _Marker, leader_id: LeaderId) -> None:
        """Put a marker into the queue of its next target, if it needs another request."""
        node_id = self._target(marker, leader_id)
        if node_id is None:
            return
        if node_id == NO_LEADER:
            self._retry(marker, "the partition has no leader")
            return
        lane = self._lanes.get(node_id)
        if lane is None:
            lane = self._lanes[node_id] = _Lane(node_id)
            self._tasks.spawn(self._serve(lane), f"markers to broker {node_id}")
        lane.append(marker)

    def _target(self, marker: _Marker, leader_id: LeaderId) -> int | None:
        """Return the target of the marker's next request: the leader of its partition (`NO_LEADER`: none
        now), or a broker in doubt. End the marker and return None if it needs no further request.
        """
        if marker.job.is_cancelled:
            self._end(marker)
            return None
        if not marker.is_written:
            leader = leader_id(*marker.where)
            if leader is not None:
                return leader
            # The image had the partition when it was added to the transaction: it was deleted since.
            marker.is_written = True
        if marker.in_doubt:
            return next(iter(marker.in_doubt))
        self._end(marker)
        return None

    async def _serve(self, lane: _Lane) -> None:
        """Send one request after the other until the queue is empty."""
        while lane:
            sent: list[_Marker] = []
            await self._turn.wait()
            try:
                answer = await self._port.ask(lane.node_id, partial(self._build, lane, sent))
            except PeerUnavailableError as error:
                await self._give_back(lane, error)
            except UnansweredError as error:
                for marker in sent:
                    await self._turn.wait()
                    self._turn.spend()
                    self._unanswered(marker, lane.node_id, str(error))
            else:
                if answer is not None:
                    await self._note(lane.node_id, sent, answer)
                await turn()  # this broker may refuse all markers of a request without a wait
        del self._lanes[lane.node_id]

    async def _give_back(self, lane: _Lane, error: PeerUnavailableError) -> None:
        """Empty the queue of an unreachable broker; retry its markers with a new look-up of their targets."""
        for number in range(len(lane)):
            (marker,) = lane.take(1)
            if isinstance(error, PeerGoneError):
                marker.in_doubt.pop(lane.node_id, None)
            self._retry(marker, str(error))
            if number % ROUTED_PER_TURN_MAX == 0:
                await turn()

    def _unanswered(self, marker: _Marker, node_id: int, reason: str) -> None:
        # A local call that timed out was cancelled, so it has no late effect. In generation 2, each
        # transaction has its own epoch, so a late marker cannot end the next transaction.
        if node_id != self._node_id and not marker.job.markers.is_generation_2:
            marker.in_doubt[node_id] = None
        self._retry(marker, reason)

    def _build(self, lane: _Lane, sent: list[_Marker]) -> WriteTxnMarkersRequest | None:
        """Return the next request of a lane, and append its markers to `sent`.

        The request omits markers that are already written: for them, only this broker's answer is missing.
        """
        self._turn.spend()
        topics: dict[_Job, dict[str, list[int]]] = {}
        leader_id = cache(self._leaders.leader_id)
        for marker in lane.take(MARKERS_PER_REQUEST_MAX):
            node_id = self._target(marker, leader_id)
            if node_id == lane.node_id:
                sent.append(marker)
                if not marker.is_written:
                    topic, index = marker.where
                    topics.setdefault(marker.job, {}).setdefault(topic, []).append(index)
            elif node_id is not None:
                self._retries.add_now(marker)
        if not sent:
            return None
        self._sent.add(sum(map(len, (indexes for of_job in topics.values() for indexes in of_job.values()))))
        return WriteTxnMarkersRequest([job.row(of_job) for job, of_job in topics.items()])

    async def _note(self, node_id: int, sent: list[_Marker], answer: WriteTxnMarkersResponse) -> None:
        """Process the results of a request in turns: route its written markers, and retry the others."""
        codes = {
            (row.producer_id, (topic.name, partition.partition_index)): partition.error_code
            for row in answer.markers
            for topic in row.topics
            for partition in topic.partitions
        }
        for marker in sent:
            await self._turn.wait()
            self._turn.spend()
            marker.in_doubt.pop(node_id, None)
            code = codes.get(marker.key, ErrorCode.UNKNOWN_SERVER_ERROR)
            if not marker.is_written and code in _REFUSED:
                marker.job.refusals[marker.where] = ErrorCode(code)
            if marker.is_written or code in _FINAL:
                marker.is_written = True
                if marker.in_doubt:
                    self._route(marker, self._leaders.leader_id)
                else:
                    self._end(marker)
            else:
                self._retry(marker, f"error code {code}")

    def _retry(self, marker: _Marker, reason: str) -> None:
        marker.attempts += 1
        self._repeated.add()
        if marker.attempts == LOGGED_ATTEMPT:
            _LOG.warning(
                "marker of producer %d for %s-%d is not written, retrying: %s",
                marker.job.markers.producer_id,
                *marker.where,
                reason,
            )
        self._retries.again(marker, marker.attempts)

    def _end(self, marker: _Marker) -> None:
        """Remove a marker and send its successor. After the last marker of a transaction, call `done`."""
        if marker.successor is not None:
            self._retries.add_now(marker.successor)
        else:
            del self._newest[marker.key]
        job = marker.job
        job.missing -= 1
        if job.missing == 0 and not job.is_cancelled:
            of_shard = self._jobs[job.shard]
            del of_shard[job]
            if not of_shard:
                del self._jobs[job.shard]
            job.done(job.refusals)


class _Job:
    """The markers of one transaction."""

    __slots__ = ("coordinator_epoch", "done", "is_cancelled", "markers", "missing", "refusals", "shard")

    def __init__(
        self, shard: int, coordinator_epoch: int, markers: Markers, done: Callable[[Refusals], None]
    ) -> None:
        self.shard = shard
        self.coordinator_epoch = coordinator_epoch
        self.markers = markers
        self.done = done
        self.missing = len(markers.partitions)
        self.refusals: dict[TopicPartition, ErrorCode] = {}
        self.is_cancelled = False

    def row(self, topics: Mapping[str, list[int]]) -> WritableTxnMarker:
        """Return the row of a request for some of the partitions."""
        markers = self.markers
        return WritableTxnMarker(
            markers.producer_id,
            markers.producer_epoch,
            markers.is_commit,
            [WritableTxnMarkerTopic(topic, indexes) for topic, indexes in topics.items()],
            self.coordinator_epoch,
            2 if markers.is_generation_2 else 0,
        )


class _Marker:
    """One partition's marker.

    Attributes:
        in_doubt: brokers that did not answer an attempt, and may still process it.
        is_written: the marker is durable or was refused as outdated, or its partition was deleted. Only
            brokers in doubt still need a request.
        successor: the next marker of the same producer and partition.
    """

    __slots__ = ("attempts", "in_doubt", "is_written", "job", "key", "successor", "where")

    def __init__(self, job: _Job, where: TopicPartition) -> None:
        self.job = job
        self.where = where
        self.key = (job.markers.producer_id, where)
        self.attempts = 0
        self.in_doubt: dict[int, None] = {}
        self.is_written = False
        self.successor: _Marker | None = None


class _Lane:
    """Markers for one broker; at most one request is in flight."""

    __slots__ = ("_first", "_repeated", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self._first: deque[_Marker] = deque()
        self._repeated: deque[_Marker] = deque()

    def __len__(self) -> int:
        return len(self._first) + len(self._repeated)

    def append(self, marker: _Marker) -> None:
        """Add a marker at the end of those with or without an earlier attempt."""
        (self._repeated if marker.attempts else self._first).append(marker)

    def take(self, count_max: int) -> list[_Marker]:
        """Remove and return the next markers. First attempts get at least half of the places, because any
        number of markers may be repeated.
        """
        repeated = min(len(self._repeated), max(count_max // 2, count_max - len(self._first)))
        first = min(len(self._first), count_max - repeated)
        return [
            *(self._first.popleft() for _ in range(first)),
            *(self._repeated.popleft() for _ in range(repeated)),
        ]
