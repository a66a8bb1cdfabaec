"""One member's share sessions: it acquires records from the leaders of its partitions, and acknowledges
them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages import share_acknowledge as acknowledge_wire
from ponor_kafka.messages import share_fetch as fetch_wire
from ponor_kafka.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from ponor_kafka.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from ponor_kafka.record_batch import split_batches
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.randomness import Randomness
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.share_groups import (
    Acknowledgement,
    Acquisition,
    Kind,
    ShareHistory,
)
from ponor_cluster_simulation.workload.connections import Connections, NotSentError
from ponor_cluster_simulation.workload.consumer import RECORD_BYTES_MAX
from ponor_cluster_simulation.workload.consumer import RETRIABLE as RETRIABLE_READS
from ponor_cluster_simulation.workload.history import ClusterHistory, Value
from ponor_cluster_simulation.workload.leaders import Leaders

VERSIONS: Final = (1, 2)
RENEWING_VERSION: Final = 2
FINAL_EPOCH: Final = -1
ANSWER_S_MAX: Final = 2.5
WAIT_MS_MAX: Final = 200
KINDS: Final = (*(Kind.ACCEPT,) * 6, *(Kind.RELEASE,) * 3, Kind.REJECT)
"""What a member draws its acknowledgements from."""
RENEWING_ONE_IN: Final = 6
SESSION_ENDED: Final = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
NOT_HELD: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""The member does not hold a record, or the leader does not know that a member acquired it."""
UNKNOWN_EFFECT: Final = RETRIABLE_READS | {ErrorCode.COORDINATOR_NOT_AVAILABLE}
"""An acknowledgement with this error may have been written."""


@dataclass(slots=True)
class SharedShareGroup:
    """What the members of the share group of one run share.

    Attributes:
        records: what all clients of the run have read.
        now_s: the time of the run, which also the elections in the history have.
        is_calm: the faults are over: no member leaves any more, and all accept what they get.
        is_over: everything is judged: the members leave.
    """

    group: str
    topic: str
    partitions: int
    bootstrap: Sequence[str]
    pause_s_max: float
    history: ShareHistory
    records: ClusterHistory
    now_s: Callable[[], float]
    states: Counter[str] = field(default_factory=Counter)
    is_calm: bool = False
    is_over: bool = False


@dataclass(slots=True)
class _Session:
    """The share session with one broker.

    Attributes:
        epoch: the epoch of the next request.
        partitions: those that the broker knows.
        acquired: records that the member got in this session.
    """

    epoch: int = 0
    partitions: frozenset[int] = frozenset()
    acquired: list[Acquisition] = field(default_factory=list)


class ShareSessions:
    """The sessions of one membership.

    Attributes:
        held: records that the member has got and not acknowledged.
    """

    def __init__(
        self,
        consumer: str,
        member_id: str,
        connections: Connections,
        leaders: Leaders,
        shared: SharedShareGroup,
    ) -> None:
        self._consumer = consumer
        self._member_id = member_id
        self._connections = connections
        self._leaders = leaders
        self._shared = shared
        self._history = shared.history
        self._sessions: dict[int, _Session] = {}
        self.held: list[Acquisition] = []

    async def step(self, runtime: Runtime, assigned: Iterable[int]) -> None:
        """Fetch from one leader, and sometimes acknowledge with a request of its own."""
        by_node: dict[int, set[int]] = defaultdict(set)
        for partition in assigned:
            leader = self._leaders.leader_of(partition)
            if leader is None:
                self._leaders.doubt()
            else:
                by_node[leader].add(partition)
        nodes = sorted(by_node.keys() | self._sessions.keys())
        if not nodes:
            return
        node = nodes[runtime.randomness.below(len(nodes))]
        if node in self._sessions and runtime.randomness.below(2):
            await self.acknowledge(runtime, node)
        if by_node[node] or node in self._sessions:
            await self._fetch(runtime, node, frozenset(by_node[node]))

    async def close(self, runtime: Runtime) -> None:
        """End all sessions with a last request each; the brokers release the other records."""
        for node in sorted(self._sessions):
            await self.acknowledge(runtime, node, is_last=True)
        self.drop()

    def drop(self) -> None:
        """Forget all sessions and records without a request."""
        for each in self.held:
            each.ended_s = min(each.ended_s, self._shared.now_s())
        self.held.clear()
        self._sessions.clear()

    # --- ShareFetch

    async def _fetch(self, runtime: Runtime, node: int, assigned: frozenset[int]) -> None:
        session = self._sessions.setdefault(node, _Session())
        asked_s = self._shared.now_s()
        acknowledgements = (
            self._choose(runtime.randomness, node, assigned)
            if session.epoch and runtime.randomness.below(2)
            else []
        )
        request = self._fetch_request(runtime.randomness, session, assigned, acknowledgements)
        version = VERSIONS[runtime.randomness.below(len(VERSIONS))]
        address = self._leaders.addresses[node]
        try:
            answer = await self._connections.ask(
                runtime, address, request, version, ShareFetchResponse, timeout_s=ANSWER_S_MAX
            )
        except (ConnectionClosedError, NotSentError):
            self._lost(node)
            for partition in assigned:
                self._history.unanswered[partition].append(asked_s)
            return
        if answer.error_code != ErrorCode.NONE:
            self._ended(node, ErrorCode(answer.error_code))
            return
        self._answered(session, asked_s)
        session.partitions = assigned
        self._shared.states["fetches answered"] += 1
        codes = {}
        for topic in answer.responses:
            for row in topic.partitions:
                codes[row.partition_index] = ErrorCode(row.acknowledge_error_code)
                self._take(node, session, row, asked_s, answer.node_endpoints)
        self._acknowledged(runtime.randomness, acknowledgements, codes)

    def _fetch_request(
        self,
        randomness: Randomness,
        session: _Session,
        assigned: frozenset[int],
        acknowledgements: Sequence[Acknowledgement],
    ) -> ShareFetchRequest:
        topic_id, below = self._topic_id, randomness.below
        batches = {
            partition: [fetch_wire.AcknowledgementBatch(*each) for each in rows]
            for partition, rows in _batches(acknowledgements).items()
        }
        rows = [
            fetch_wire.FetchPartition(partition, batches.get(partition, ()))
            for partition in sorted((assigned - session.partitions) | batches.keys())
        ]
        forgotten = sorted(session.partitions - assigned)
        is_calm = self._shared.is_calm
        return ShareFetchRequest(
            self._shared.group,
            self._member_id,
            session.epoch,
            max_wait_ms=below(2) * WAIT_MS_MAX,
            min_bytes=below(2),
            max_bytes=1 << 20 if is_calm else (2_000, 1 << 20)[below(2)],
            max_records=(1, 5, 20)[below(3)] if not is_calm else 100,
            batch_size=(1, 10)[below(2)],
            share_acquire_mode=below(2),
            topics=[fetch_wire.FetchTopic(topic_id, rows)] if rows else [],
            forgotten_topics_data=[fetch_wire.ForgottenTopic(topic_id, forgotten)] if forgotten else [],
        )

    def _take(
        self,
        node: int,
        session: _Session,
        row: fetch_wire.PartitionData,
        asked_s: float,
        endpoints: Sequence[fetch_wire.NodeEndpoint],
    ) -> None:
        """Take the acquired records of a partition; every one of them must be in the answer."""
        partition, code = row.partition_index, ErrorCode(row.error_code)
        if code is not ErrorCode.NONE:
            assert code in RETRIABLE_READS, f"{self._consumer}: partition {partition}: {code.name}"
            self._leaders.hint(partition, row.current_leader, endpoints)
            return
        offsets = set()
        for batch in split_batches(memoryview(row.records or b"")):  # type: ignore[arg-type]
            batch.check_crc()
            for record in batch.records(RECORD_BYTES_MAX):
                assert record.value is not None
                value = Value.decode(bytes(record.value))
                self._shared.records.see(partition, record.offset, value, batch.leader_epoch)
                offsets.add(record.offset)
        now_s = self._shared.now_s()
        fresh: list[Acquisition] = []
        for each in row.acquired_records:
            for offset in range(each.first_offset, each.last_offset + 1):
                assert offset in offsets, f"{self._consumer} acquired {partition}-{offset} without its record"
                acquisition = self._history.acquired(
                    self._consumer,
                    (partition, offset),
                    node=node,
                    count=each.delivery_count,
                    asked_s=asked_s,
                    got_s=now_s,
                )
                fresh.append(acquisition)
        # An acknowledgement of a record that was delivered again concerns the newest delivery.
        again = {each.record for each in fresh}
        self.held = [each for each in self.held if each.record not in again] + fresh
        session.acquired += fresh

    # --- acknowledgements

    async def acknowledge(self, runtime: Runtime, node: int, *, is_last: bool = False) -> None:
        """Send ShareAcknowledge for some of the records of a broker."""
        session = self._sessions[node]
        partitions = frozenset(range(self._shared.partitions))
        acknowledgements = self._choose(runtime.randomness, node, partitions, may_renew=not is_last)
        if session.epoch == 0 or not (acknowledgements or is_last):
            return
        is_renewing = any(each.kind is Kind.RENEW for each in acknowledgements)
        rows = [
            acknowledge_wire.AcknowledgePartition(
                partition, [acknowledge_wire.AcknowledgementBatch(*each) for each in batches]
            )
            for partition, batches in _batches(acknowledgements).items()
        ]
        request = ShareAcknowledgeRequest(
            self._shared.group,
            self._member_id,
            FINAL_EPOCH if is_last else session.epoch,
            is_renew_ack=is_renewing,
            topics=[acknowledge_wire.AcknowledgeTopic(self._topic_id, rows)] if rows else [],
        )
        asked_s, address = self._shared.now_s(), self._leaders.addresses[node]
        try:
            answer = await self._connections.ask(
                runtime, address, request, RENEWING_VERSION, ShareAcknowledgeResponse, timeout_s=ANSWER_S_MAX
            )
        except (ConnectionClosedError, NotSentError):
            self._lost(node)
            return
        if answer.error_code != ErrorCode.NONE:
            self._ended(node, ErrorCode(answer.error_code))
            return
        self._answered(session, asked_s)
        found = [row for topic in answer.responses for row in topic.partitions]
        for row in found:
            if row.error_code in RETRIABLE_READS:
                self._leaders.hint(row.partition_index, row.current_leader, answer.node_endpoints)
        codes = {row.partition_index: ErrorCode(row.error_code) for row in found}
        self._acknowledged(runtime.randomness, acknowledgements, codes)

    def _choose(
        self, randomness: Randomness, node: int, partitions: frozenset[int], *, may_renew: bool = False
    ) -> list[Acknowledgement]:
        """Choose records that the broker delivered or whose leader it is now; it must refuse the latter."""
        share = 1 + randomness.below(3)  # a third of the records, two thirds, or all
        chosen: list[Acquisition] = []
        kept: list[Acquisition] = []
        for each in self.held:
            partition, _ = each.record
            is_possible = partition in partitions and node in {each.node, self._leaders.leader_of(partition)}
            is_chosen = is_possible and (self._shared.is_calm or randomness.below(3) < share)
            (chosen if is_chosen else kept).append(each)
        self.held = kept
        now_s, found = self._shared.now_s(), []
        for each in sorted(chosen, key=lambda one: one.record):
            kind = Kind.ACCEPT if self._shared.is_calm else KINDS[randomness.below(len(KINDS))]
            if may_renew and not self._shared.is_calm and randomness.below(RENEWING_ONE_IN) == 0:
                kind = Kind.RENEW
                self.held.append(each)
            found.append(self._history.acknowledging(each, kind, now_s))
        return found

    def _acknowledged(
        self,
        randomness: Randomness,
        acknowledgements: Sequence[Acknowledgement],
        codes: Mapping[int, ErrorCode],
    ) -> None:
        now_s, states = self._shared.now_s(), self._shared.states
        for partition, rows in groupby(acknowledgements, key=lambda each: each.acquisition.record[0]):
            together, code = list(rows), codes[partition]
            if code is ErrorCode.NONE:
                for each in together:
                    states[f"records: {each.kind.name.lower()}"] += 1
                    self._history.confirmed(each, now_s)
            elif code in NOT_HELD:
                states["acknowledgements refused"] += len(together)
                self._history.refused(together, now_s)
            else:
                assert code in UNKNOWN_EFFECT, f"{self._consumer}: partition {partition}: {code.name}"
                states["acknowledgements without a known effect"] += len(together)
                if randomness.below(2):
                    known = {each.record for each in self.held}
                    tried = [each.acquisition for each in together if each.kind is not Kind.RENEW]
                    self.held += [each for each in tried if each.record not in known]

    # --- sessions

    @property
    def _topic_id(self) -> bytes:
        assert self._leaders.topic_id is not None
        return self._leaders.topic_id

    def _answered(self, session: _Session, asked_s: float) -> None:
        """Note that the session had not ended when the request was sent."""
        session.epoch += 1
        for each in session.acquired:
            each.seen_s = max(each.seen_s, asked_s)

    def _lost(self, node: int) -> None:
        """Handle a request without an answer: begin a new session."""
        self._sessions.pop(node, None)
        self._leaders.doubt()

    def _ended(self, node: int, code: ErrorCode) -> None:
        """Begin a new session. The effect of the acknowledgements in the request is not known: a broker that
        must not answer starts the request again, and then finds that it has raised the epoch already.
        """
        assert code in SESSION_ENDED, f"{self._consumer}: {code.name}"
        self._shared.states["sessions that the broker had ended"] += 1
        self._sessions.pop(node, None)


def _batches(
    acknowledgements: Sequence[Acknowledgement],
) -> dict[int, list[tuple[int, int, list[int]]]]:
    """Return first offset, last offset and types of consecutive records, by partition."""
    found: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    for each in acknowledgements:
        partition, offset = each.acquisition.record
        batches = found[partition]
        if batches and batches[-1][1] == offset - 1:
            first, _, kinds = batches[-1]
            batches[-1] = (first, offset, [*kinds, int(each.kind)])
        else:
            batches.append((offset, offset, [int(each.kind)]))
    return found
