"""DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152): answers from memory."""

from __future__ import annotations

from collections.abc import Iterable

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from ponor_kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ponor_kafka.messages.list_transactions import TransactionState as ListedTransaction
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.linear_pattern import LinearPattern, PatternError
from ponor_broker.coordination.shards import ROWS_PER_STEP
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather
from ponor_broker.requests.request_rows import check_rows
from ponor_broker.transactions.coordinator import TransactionCoordinator, TransactionFilter, states_of
from ponor_broker.transactions.records import TransactionRecord, by_topic


class TransactionAdminHandlers:
    """Administrators' view of the transactional ids that this broker coordinates."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._turns = Turns()

    async def describe(
        self, request: DescribeTransactionsRequest, _: RequestContext
    ) -> DescribeTransactionsResponse:
        """Return one result per id."""
        check_rows(len(request.transactional_ids))
        # Each id once: it may have thousands of partitions, and a request may name it 100,000 times.
        ids = list(dict.fromkeys(request.transactional_ids))
        found = await bounded_gather(map(self._coordinator.describe, ids))
        rows = await self._turns.run_short(_described(zip(ids, found, strict=True)))
        return DescribeTransactionsResponse(transaction_states=rows)

    async def list_transactions(
        self, request: ListTransactionsRequest, _: RequestContext
    ) -> ListTransactionsResponse:
        """Return the ids that match every filter."""
        states, unknown = states_of(request.state_filters)
        try:
            text = request.transactional_id_pattern
            pattern = LinearPattern(text) if text else None
        except PatternError:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        wanted = TransactionFilter(
            states, frozenset(request.producer_id_filters), request.duration_filter, pattern
        )
        found = await self._turns.run_short(self._coordinator.list_transactions(wanted))
        if isinstance(found, ErrorCode):
            return ListTransactionsResponse(error_code=found)
        if request.state_filters and not states:
            found = ()  # every name in the filter is unknown, so that it matches no transaction
        return ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=[
                ListedTransaction(transactional_id, record.producer_id, record.state.label)
                for transactional_id, record in found
            ],
        )


def _described(found: Iterable[tuple[str, ErrorCode | TransactionRecord]]) -> Steps[list[TransactionState]]:
    rows: list[TransactionState] = []
    in_step = 0
    for transactional_id, record in found:
        if isinstance(record, ErrorCode):
            rows.append(TransactionState(record, transactional_id))
            in_step += 1
        else:
            rows.append(_row(transactional_id, record))
            in_step += 1 + len(record.partitions)
        if in_step >= ROWS_PER_STEP:
            in_step = 0
            yield
    return rows


def _row(transactional_id: str, record: TransactionRecord) -> TransactionState:
    return TransactionState(
        ErrorCode.NONE,
        transactional_id,
        record.state.label,
        record.timeout_ms,
        record.start_ms,
        record.producer_id,
        record.producer_epoch,
        [TopicData(topic, indexes) for topic, indexes in by_topic(record.partitions)],
    )
