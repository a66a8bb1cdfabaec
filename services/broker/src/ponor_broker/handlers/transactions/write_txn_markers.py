"""WriteTxnMarkers: a transaction coordinator ends transactions in partitions that this broker leads.

The coordinator of this broker calls `write_txn_markers` without a connection. The answer is sent when all
markers are durable or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from ponor_broker.partitions.marker_writer import MarkerWriter, PlacedMarker
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.peers.connection_order import ConnectionOrder
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import check_rows


class WriteTxnMarkersHandler:
    """Appends markers to partitions."""

    def __init__(self, markers: MarkerWriter) -> None:
        self._markers = markers
        self._order = ConnectionOrder()

    async def handle(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        """Return one result per marker and partition. Markers of a connection that its broker has given up
        are refused.
        """
        check_rows(sum(1 for row in request.markers for _ in _places(row)))
        is_wanted = partial(self._order.admits, context.client_id)
        is_wanted()  # even a request without markers makes earlier connections outdated
        return await self.write_txn_markers(request, is_wanted)

    async def write_txn_markers(
        self, request: WriteTxnMarkersRequest, is_wanted: Callable[[], bool] = lambda: True
    ) -> WriteTxnMarkersResponse:
        """Append the markers, each only if `is_wanted` holds; return when all are durable or refused."""
        codes = iter(await self._markers.write(list(_placed(request)), is_wanted))
        # Results are in the order of the request.
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    row.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(index, next(codes))
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in row.topics
                    ],
                )
                for row in request.markers
                if any(topic.partition_indexes for topic in row.topics)  # as in Kafka
            ]
        )


def _places(row: WritableTxnMarker) -> Iterator[tuple[str, int]]:
    return ((topic.name, index) for topic in row.topics for index in topic.partition_indexes)


def _placed(request: WriteTxnMarkersRequest) -> Iterator[PlacedMarker]:
    for row in request.markers:
        marker = _marker(row)
        for topic, index in _places(row):
            yield PlacedMarker(marker, topic, index)


def _marker(row: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch,
        row.transaction_result,
        row.transaction_version,
    )
