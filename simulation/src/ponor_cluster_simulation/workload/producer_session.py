"""A transactional producer's requests, each repeated until its answer is final.

Generation 1 adds partitions itself and keeps its epoch; generation 2 (KIP-890) lets Produce and
TxnOffsetCommit add them, and gets a new epoch from EndTxn. After a transaction with an unanswered request,
generation 1 takes a new epoch, because a late request would otherwise take effect in the next transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ponor_kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transactions import Entry, Outcome
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.workload.connections import GROUP, TRANSACTION, Connections, M, NotSentError
from ponor_cluster_simulation.workload.leaders import Leaders

RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
ENDED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""The coordinator aborted the transaction: another client took the transactional id, or its timeout ended."""
TIMEOUT_SHARE: Final = 0.85
"""Share of the timeout before which no transaction may time out; below 1, as a broker's clock may be fast."""
FOREVER: Final = 1 << 40


class EndedError(Exception):
    """The coordinator ended the transaction."""


@dataclass(slots=True)
class IdUse:
    """How the clients of one transactional id have used it.

    Attributes:
        inits: InitProducerId requests that were sent; each may abort a transaction.
        pending: InitProducerId requests that wait for an answer.
        unanswered: InitProducerId requests without an answer; each may still abort a transaction later.
    """

    inits: int = 0
    pending: int = 0
    unanswered: int = 0


class VanishedError(Exception):
    """The client disappears instead of sending its next request."""


class ProducerSession:
    """One client's use of a transactional id, from an InitProducerId to the next.

    Attributes:
        generation: 1 or 2.
        repeats: requests that were sent again.
        requests_left: the client disappears before the last of these requests.
        needs_init: the next transaction needs a new epoch.
        is_in_doubt: a request of this transaction got no answer.
    """

    def __init__(
        self,
        runtime: Runtime,
        connections: Connections,
        leaders: Leaders,
        checks: Checks,
        use: IdUse,
        *,
        transactional_id: str,
        topic: str,
        generation: int,
        timeout_s: float,
    ) -> None:
        self._runtime = runtime
        self._connections = connections
        self._leaders = leaders
        self._checks = checks
        self._use = use
        self._id = transactional_id
        self._topic = topic
        self._timeout_s = timeout_s
        self.generation = generation
        self.repeats = 0
        self.requests_left = FOREVER
        self.is_in_doubt = False
        self.needs_init = True
        self._producer_id = self._epoch = -1
        self._sequences: dict[int, int] = {}
        self._inits = 0
        self._began_s = 0.0

    @property
    def _now_s(self) -> float:
        return self._runtime.clock.monotonic_ns() / 1e9

    # --- requests

    async def init(self) -> None:
        """Take a new epoch, which aborts what an earlier client left open."""
        request = InitProducerIdRequest(self._id, round(self._timeout_s * 1000))

        async def attempt() -> ErrorCode:
            use = self._use
            use.inits += 1
            use.pending += 1
            inits = use.inits
            try:
                answer = await self._coordinated(request, 5, InitProducerIdResponse)
            except ConnectionClosedError:
                use.unanswered += 1
                raise
            finally:
                use.pending -= 1
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
            self._inits = -1 if use.pending else inits
            return ErrorCode(answer.error_code)

        code = await self._until_final(attempt)
        assert code is ErrorCode.NONE, f"{self._id}: {code.name}"
        self._sequences.clear()
        self.needs_init = False

    def begin(self) -> None:
        """Begin a transaction; the timeout begins with its first request."""
        self._began_s = self._now_s
        self.is_in_doubt = False
        if self.generation == 2:
            self._sequences.clear()

    async def add_partitions(self, partitions: Collection[int]) -> None:
        """Add partitions to the transaction (generation 1).

        Raises:
            EndedError: the transaction has ended.
        """
        topics = [AddPartitionsToTxnTopic(self._topic, sorted(partitions))]
        request = AddPartitionsToTxnRequest((), self._id, self._producer_id, self._epoch, topics)

        async def attempt() -> ErrorCode:
            answer = await self._coordinated(request, 3, AddPartitionsToTxnResponse)
            rows = answer.results_by_topic_v3_and_below[0].results_by_partition
            return ErrorCode(max(row.partition_error_code for row in rows))

        self._require_open(await self._until_final(attempt))

    async def write(self, partition: int, entries: Sequence[Entry], size_bytes: int) -> None:
        """Append one batch.

        Raises:
            EndedError: the transaction has ended.
        """
        sequence = self._sequences.get(partition, 0)
        batch = self._batch(partition, entries, size_bytes, sequence)

        async def attempt() -> ErrorCode:
            leader = self._leaders.leader_of(partition)
            if leader is None:
                return ErrorCode.LEADER_NOT_AVAILABLE
            data = [PartitionProduceData(partition, memoryview(batch))]
            topic = TopicProduceData(self._topic, partition_data=data)
            request = ProduceRequest(self._id, acks=-1, timeout_ms=2_000, topic_data=[topic])
            version = 12 if self.generation == 2 else (9, 11)[self._runtime.randomness.below(2)]
            address = self._leaders.addresses[leader]
            answer = await self._connections.ask(self._runtime, address, request, version, ProduceResponse)
            row = answer.responses[0].partition_responses[0]
            if row.error_code != ErrorCode.NONE:
                self._leaders.hint(partition, row.current_leader, answer.node_endpoints)
            return ErrorCode(row.error_code)

        self._require_open(await self._until_final(attempt))
        self._sequences[partition] = sequence + len(entries)

    def _batch(self, partition: int, entries: Sequence[Entry], size_bytes: int, sequence: int) -> bytes:
        now_ms = self._runtime.clock.wall_ms()
        records = [
            NewRecord(now_ms, f"{entry.client}/{partition}/{entry.number}".encode(), entry.encode(size_bytes))
            for entry in entries
        ]
        return bytes(
            build_batch(
                records,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )

    async def commit_offsets(self, group: str, offsets: Mapping[int, int]) -> None:
        """Add offsets of a group to the transaction.

        Raises:
            EndedError: the transaction has ended.
        """
        if self.generation == 1:
            added = AddOffsetsToTxnRequest(self._id, self._producer_id, self._epoch, group)

            async def add() -> ErrorCode:
                return ErrorCode((await self._coordinated(added, 3, AddOffsetsToTxnResponse)).error_code)

            self._require_open(await self._until_final(add))
        rows = [TxnOffsetCommitRequestPartition(*row, committed_metadata=None) for row in offsets.items()]
        topics = [TxnOffsetCommitRequestTopic(self._topic, partitions=rows)]
        request = TxnOffsetCommitRequest(self._id, group, self._producer_id, self._epoch, topics=topics)

        async def attempt() -> ErrorCode:
            answer = await self._connections.ask_coordinator(
                self._runtime,
                GROUP,
                group,
                request,
                5 if self.generation == 2 else 3,
                TxnOffsetCommitResponse,
            )
            return ErrorCode(max(row.error_code for row in answer.topics[0].partitions))

        self._require_open(await self._until_final(attempt))

    async def end(self, *, is_commit: bool) -> Outcome:
        """End the transaction. Return the outcome of a commit; UNKNOWN if a request without a final answer
        may have committed it.
        """
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, is_commit)
        is_unclear = False

        async def attempt() -> ErrorCode:
            nonlocal is_unclear
            was_unclear, is_unclear = is_unclear, True
            answer = await self._coordinated(request, 5 if self.generation == 2 else 3, EndTxnResponse)
            code = ErrorCode(answer.error_code)
            # After other retriable errors, the coordinator may nevertheless have written the outcome.
            if code not in RETRIABLE or code is ErrorCode.CONCURRENT_TRANSACTIONS:
                is_unclear = was_unclear
            if code is ErrorCode.NONE and self.generation == 2:
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
            return code

        code = await self._until_final(attempt)
        self.needs_init = self.generation == 1 and (self.is_in_doubt or is_unclear)
        if code is ErrorCode.NONE:
            return Outcome.COMMITTED
        self._note_end(code)
        return Outcome.UNKNOWN if is_unclear else Outcome.ABORTED

    # --- answers

    async def _until_final(self, attempt: Callable[[], Awaitable[ErrorCode]]) -> ErrorCode:
        """Repeat a request until its answer is final.

        Raises:
            VanishedError: the client disappears first.
        """
        while True:
            self.requests_left -= 1
            if self.requests_left == 0:
                raise VanishedError
            try:
                code = await attempt()
            except NotSentError:
                code = ErrorCode.NOT_COORDINATOR
            except ConnectionClosedError:
                self.is_in_doubt = True
                code = ErrorCode.NOT_COORDINATOR
            if code not in RETRIABLE:
                return code
            self.repeats += 1
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self.is_in_doubt = True
                self._connections.forget_coordinators()
                self._leaders.doubt()
            await self._runtime.clock.sleep(self._runtime.randomness.uniform(0.02, 0.15))

    def _require_open(self, code: ErrorCode) -> None:
        is_repeated = code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self.is_in_doubt
        if code is not ErrorCode.NONE and not is_repeated:
            self._note_end(code)
            raise EndedError(code.name)

    def _note_end(self, code: ErrorCode) -> None:
        """Check that the coordinator had a reason to end the transaction."""
        self.needs_init = True
        age_s = self._now_s - self._began_s
        has_reason = age_s > TIMEOUT_SHARE * self._timeout_s or self._use.inits > self._inits
        if not has_reason and self._use.unanswered:
            self._use.unanswered -= 1
            has_reason = True
        self._checks.require(
            52,
            code in ENDED and has_reason,
            f"{self._id} got {code.name} {age_s:.2f} s after it began a transaction with a timeout of"
            f" {self._timeout_s} s",
        )

    async def _coordinated(self, request: Message, version: int, expected: type[M]) -> M:
        return await self._connections.ask_coordinator(
            self._runtime, TRANSACTION, self._id, request, version, expected
        )
