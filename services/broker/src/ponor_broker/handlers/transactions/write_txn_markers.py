"""WriteTxnMarkers: a transaction coordinator ends transactions in partitions that this broker leads.

The coordinator of this broker calls `write_txn_markers` without a connection. The answer is sent when all
markers are durable or refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.shards import ROWS_PER_STEP
from ponor_broker.partitions.marker_writer import MarkerWriter, PlacedMarker
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.peers.connection_order import ConnectionOrder
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import ROWS_MAX, check_rows


class WriteTxnMarkersHandler:
    """Appends markers to partitions."""

    def __init__(self, markers: MarkerWriter) -> None:
        self._markers = markers
        self._order = ConnectionOrder()
        self._turns = Turns()

    async def handle(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        """Return one result per marker and partition. Markers of a connection that its broker has given up
        are refused.
        """
        is_wanted = partial(self._order.admits, context.client_id)
        is_wanted()  # even a request without markers makes earlier connections outdated
        check_rows(len(request.markers))
        check_rows(await self._turns.run_short(_rows_of(request)))
        return await self.write_txn_markers(request, is_wanted)

    async def write_txn_markers(
        self, request: WriteTxnMarkersRequest, is_wanted: Callable[[], bool] = lambda: True
    ) -> WriteTxnMarkersResponse:
        """Append the markers, each only if `is_wanted` holds; return when all are durable or refused."""
        codes = await self._markers.write(_placed(request), is_wanted)
        return WriteTxnMarkersResponse(await self._turns.run_short(_results(request, iter(codes))))


def _rows_of(request: WriteTxnMarkersRequest) -> Steps[int]:
    """Return the number of rows, topics and partitions. The count may stop when it exceeds the bound."""
    rows, step = 0, ROWS_PER_STEP
    for row in request.markers:
        rows += 1 + len(row.topics)
        if rows > ROWS_MAX:
            break
        rows += sum(len(topic.partition_indexes) for topic in row.topics)
        if rows >= step:
            step = rows + ROWS_PER_STEP
            yield
    return rows


def _results(
    request: WriteTxnMarkersRequest, codes: Iterator[ErrorCode]
) -> Steps[list[WritableTxnMarkerResult]]:
    """Return the results in the order of the request."""
    results: list[WritableTxnMarkerResult] = []
    counter = itertools.count(1)
    for row in request.markers:
        topics: list[WritableTxnMarkerTopicResult] = []
        has_partitions = False
        for topic in row.topics:
            partitions: list[WritableTxnMarkerPartitionResult] = []
            for index in topic.partition_indexes:
                has_partitions = True
                partitions.append(WritableTxnMarkerPartitionResult(index, next(codes)))
                if next(counter) % ROWS_PER_STEP == 0:
                    yield
            topics.append(WritableTxnMarkerTopicResult(topic.name, partitions))
            if next(counter) % ROWS_PER_STEP == 0:
                yield
        if has_partitions:  # as in Kafka
            results.append(WritableTxnMarkerResult(row.producer_id, topics))
        if next(counter) % ROWS_PER_STEP == 0:
            yield
    return results


def _placed(request: WriteTxnMarkersRequest) -> Iterator[PlacedMarker]:
    for row in request.markers:
        marker = None
        for topic in row.topics:
            for index in topic.partition_indexes:
                marker = marker or _marker(row)
                yield PlacedMarker(marker, topic.name, index)


def _marker(row: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch,
        row.transaction_result,
        row.transaction_version,
    )
