"""The transaction coordinator of one broker: finds the shard of a transactional id and runs the background
work of all shards.

The entry point for handlers. It checks the parts of a request that do not depend on the state of an id.
`coordination/shards.py` loads and unloads shards and refuses requests for ids that another broker
coordinates; `shard.py` handles the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ponor_runtime.turns import Steps, TurnBudget

from ponor_broker.coordination.linear_pattern import LinearPattern
from ponor_broker.coordination.ports import InternalPartition
from ponor_broker.coordination.record_format import fits_record
from ponor_broker.coordination.record_log import RecordLog, completion_budget
from ponor_broker.coordination.shards import RETRY_S, ROWS_PER_STEP, BrokerPorts, CoordinatedTopic, Shards
from ponor_broker.requests.bounded_gather import bounded_gather
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim
from ponor_broker.transactions.id_table import TransactionBudget
from ponor_broker.transactions.instructions import TransactionAnswer
from ponor_broker.transactions.metrics import TransactionMetrics
from ponor_broker.transactions.ports import MarkerPort, OffsetsPartitionOf, TakeProducerId
from ponor_broker.transactions.record_codec import CODEC
from ponor_broker.transactions.records import TransactionRecord, TransactionState
from ponor_broker.transactions.settings import TransactionSettings
from ponor_broker.transactions.shard import TransactionShard, Verified

BATCH_BYTES_MAX: Final = 16 << 20
"""Enough for the record of a transaction with the most partitions, in topics with the longest names."""
BATCHED_PER_TURN_MAX: Final = 64
BATCHED_TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop begins no further transaction in requests of brokers after one of these bounds. An
added partition takes 0.15 ms; its record contains all partitions of the transaction: 5 ms for 10,000."""
ANY_DURATION: Final = -1


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Filters of ListTransactions; an empty filter matches all ids.

    Attributes:
        longer_than_ms: matches transactions that have been open for longer; −1: any.
        pattern: must match the whole transactional id.
    """

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = ANY_DURATION
    pattern: LinearPattern | None = None

    def matches(self, record: TransactionRecord, now_ms: int) -> bool:
        """Return whether an id with this state passes all filters except the pattern."""
        if self.producer_ids and record.producer_id not in self.producer_ids:
            return False
        if self.states and record.state not in self.states:
            return False
        # As in Kafka, the start time of an id without a transaction is −1, so the id passes this filter.
        return self.longer_than_ms < 0 or now_ms - record.start_ms > self.longer_than_ms


class BatchedAdd(NamedTuple):
    """One transaction in an AddPartitionsToTxn that a broker sent."""

    transactional_id: str
    request: AddRequest
    is_verify_only: bool


class TransactionCoordinator:
    """The coordinator; call `start` before partitions open, `close` before they close."""

    def __init__(
        self,
        ports: BrokerPorts,
        *,
        settings: TransactionSettings,
        markers: MarkerPort,
        take_producer_id: TakeProducerId,
        offsets_partition_of: OffsetsPartitionOf,
    ) -> None:
        self._runtime = ports.runtime
        self._settings = settings
        self._markers = markers
        self._take_producer_id = take_producer_id
        self._offsets_partition_of = offsets_partition_of
        topic = CoordinatedTopic(
            TRANSACTIONS_TOPIC,
            "transactional ids",
            settings.transaction_topic_partitions,
            settings.transaction_wait_ms_max,
        )
        self.shards: Final = Shards(topic, ports, create=self._new_shard)
        clock = ports.runtime.clock
        self._completions = completion_budget(clock)
        self._turn = TurnBudget(clock, count_max=BATCHED_PER_TURN_MAX, duration_ns_max=BATCHED_TURN_NS_MAX)
        self._rewrite_due = asyncio.Event()
        telemetry = ports.runtime.telemetry
        self.budget = TransactionBudget(settings, telemetry.counter("ponor_transaction_refusals_total"))
        self._metrics = TransactionMetrics(telemetry)
        self._expired = telemetry.counter("ponor_transactional_ids_expired_total")
        self._rewrites = telemetry.counter("ponor_transaction_log_rewrites_total")

    # --- life

    def start(self) -> None:
        """Load partitions of `__transaction_state` when they open here; start the background work."""
        self.shards.start()
        self.shards.tasks.spawn(self._expire_now_and_then(), "expiry of transactional ids")
        # Rewrites one log at a time, and one batch after the other, because transactions use the same disk.
        self.shards.tasks.spawn(self._rewrite_when_due(), "transaction log rewrites")
        telemetry, budget, shards = self._runtime.telemetry, self.budget, self.shards.by_index
        for state in TransactionState:
            count = partial(budget.by_state.__getitem__, state)
            telemetry.gauge("ponor_transactional_ids", count, state=state.label)
        telemetry.gauge("ponor_transactions_memory_bytes", lambda: budget.size_bytes)
        telemetry.gauge(
            "ponor_transaction_log_bytes", lambda: sum(shard.log_size_bytes for shard in shards.values())
        )

    async def close(self) -> None:
        """Answer every waiting request with NOT_COORDINATOR and stop all timers. Idempotent."""
        await self.shards.close()

    def _new_shard(self, partition: InternalPartition) -> TransactionShard:
        log = RecordLog(
            TRANSACTIONS_TOPIC,
            partition,
            CODEC,
            now_ms=self._runtime.clock.wall_ms,
            batch_bytes_max=BATCH_BYTES_MAX,
            in_flight_max=self._settings.transaction_writes_in_flight_max,
            load_bytes_max=self._settings.transaction_load_bytes_max,
            completions=self._completions,
        )
        return TransactionShard(
            partition,
            log,
            settings=self._settings,
            clock=self._runtime.clock,
            timers=self.shards.timers,
            tasks=self.shards.tasks,
            budget=self.budget,
            markers=self._markers,
            take_producer_id=self._take_producer_id,
            rewrite_due=self._rewrite_due.set,
            metrics=self._metrics,
        )

    async def _expire_now_and_then(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings.transactional_id_expiry_interval_ms / 1000)
            for shard in self.shards.loaded():
                self._expired.add(await shard.expire())

    async def _rewrite_when_due(self) -> None:
        while True:
            await self._rewrite_due.wait()
            self._rewrite_due.clear()
            for shard in self.shards.loaded():
                if not shard.rewrite.is_due:
                    continue
                is_written = await shard.rewrite.write()
                self._rewrites.add(int(is_written))
                if not is_written:
                    self._rewrite_due.set()
            if self._rewrite_due.is_set():
                await self._runtime.clock.sleep(RETRY_S)

    async def _decided(self, transactional_id: str) -> TransactionShard | ErrorCode:
        """Return the loaded shard of an id, after a bounded wait for it, or the error for its request."""
        if is_valid_id(transactional_id):
            await self.shards.decided((transactional_id,))
        return self._loaded(transactional_id)

    def _loaded(self, transactional_id: str) -> TransactionShard | ErrorCode:
        """As `_decided`, without the wait."""
        return (
            self.shards.of(transactional_id) if is_valid_id(transactional_id) else ErrorCode.INVALID_REQUEST
        )

    # --- requests of producers and of partitions' leaders

    async def init_producer_id(self, transactional_id: str, request: InitRequest) -> TransactionAnswer:
        """InitProducerId with a transactional id."""
        answer = await self._init_producer_id(transactional_id, request)
        self._metrics.answered("init", answer.error)
        return answer

    async def _init_producer_id(self, transactional_id: str, request: InitRequest) -> TransactionAnswer:
        if transactional_id and not 0 < request.timeout_ms <= self._settings.transaction_timeout_ms_max:
            return TransactionAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        shard = await self._decided(transactional_id)
        if isinstance(shard, ErrorCode):
            return TransactionAnswer(shard)
        return await shard.init_producer_id(transactional_id, request)

    async def add_partitions(self, transactional_id: str, request: AddRequest) -> ErrorCode:
        """AddPartitionsToTxn for one transaction: all partitions are added, or none."""
        return await self._add(await self._decided(transactional_id), transactional_id, request)

    async def _add(
        self, shard: TransactionShard | ErrorCode, transactional_id: str, request: AddRequest
    ) -> ErrorCode:
        if isinstance(shard, ErrorCode):
            error = shard
        else:
            error = (await shard.add_partitions(transactional_id, request)).error
        self._metrics.answered("add", error)
        return error

    def verify_partitions(self, transactional_id: str, request: AddRequest) -> Verified:
        """AddPartitionsToTxn that only verifies: one result per partition (TRANSACTION_ABORTABLE if it is not
        in the transaction), or one error for all.
        """
        shard = self._loaded(transactional_id)
        found = shard if isinstance(shard, ErrorCode) else shard.verify_partitions(transactional_id, request)
        for error in [found] if isinstance(found, ErrorCode) else found.values():
            self._metrics.answered("verify", error)
        return found

    async def add_batched(self, batch: Sequence[BatchedAdd]) -> list[Verified]:
        """Handle an AddPartitionsToTxn that a broker sent. Return for each transaction one error for all its
        partitions, or the results of a verification.

        Does not wait until a partition of `__transaction_state` is loaded: the wait would delay the answer
        for all transactions of the request, and the broker's next request. Leaders or clients retry.
        """
        return await bounded_gather(map(self._added, batch))

    async def _added(self, one: BatchedAdd) -> Verified:
        await self._turn.wait()
        self._turn.spend()
        if one.is_verify_only:
            return self.verify_partitions(one.transactional_id, one.request)
        return await self._add(self._loaded(one.transactional_id), one.transactional_id, one.request)

    async def add_offsets(
        self, transactional_id: str, claim: ProducerClaim, group_id: str, *, is_generation_2: bool = False
    ) -> ErrorCode:
        """AddOffsetsToTxn: add the group's partition of `__consumer_offsets`."""
        partitions = frozenset({(OFFSETS_TOPIC, self._offsets_partition_of(group_id))})
        return await self.add_partitions(transactional_id, AddRequest(claim, partitions, is_generation_2))

    async def end(self, transactional_id: str, request: EndRequest) -> TransactionAnswer:
        """EndTxn: answered when the outcome is durable; the markers follow."""
        shard = await self._decided(transactional_id)
        if isinstance(shard, ErrorCode):
            answer = TransactionAnswer(shard)
        else:
            answer = await shard.end(transactional_id, request)
        self._metrics.answered("end", answer.error)
        return answer

    # --- administration

    async def describe(self, transactional_id: str) -> ErrorCode | TransactionRecord:
        """DescribeTransactions, one id."""
        shard = await self._decided(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.get(transactional_id) or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def list_transactions(
        self, wanted: TransactionFilter
    ) -> Steps[ErrorCode | Sequence[tuple[str, TransactionRecord]]]:
        """ListTransactions of this broker; COORDINATOR_LOAD_IN_PROGRESS while a partition is loading."""
        if self.shards.refusal is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self.shards.is_whole:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        now_ms = self._runtime.clock.wall_ms()
        found: list[tuple[str, TransactionRecord]] = []
        ids = chain.from_iterable([shard.ids() for shard in self.shards.loaded()])
        for number, held in enumerate(ids, 1):
            record = held.transaction.record
            is_wanted = record is not None and wanted.matches(record, now_ms)
            if is_wanted and wanted.pattern is not None:
                is_wanted = yield from wanted.pattern.matches(held.transactional_id)
            if record is not None and is_wanted:
                found.append((held.transactional_id, record))
            if number % ROWS_PER_STEP == 0:
                yield
        return found


def is_valid_id(transactional_id: str) -> bool:
    """Return whether a request may name this transactional id."""
    return bool(transactional_id) and fits_record(transactional_id)


def states_of(labels: Collection[str]) -> tuple[frozenset[TransactionState], list[str]]:
    """Return the states that a filter of ListTransactions names, and the names that are no states."""
    known = {state.label: state for state in TransactionState}
    return frozenset(known[label] for label in labels if label in known), [
        label for label in labels if label not in known
    ]
