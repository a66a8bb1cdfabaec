"""Metrics of the transactions that this broker coordinates, except the gauges of ids and memory."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_runtime.telemetry import Telemetry

from ponor_broker.transactions.records import TransactionRecord

_US_PER_MS: Final = 1_000


class TransactionMetrics:
    """Counts ended transactions and refused requests, and measures durations by the wall clock."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._commits = telemetry.counter("ponor_transactions_total", outcome="commit")
        self._aborts = telemetry.counter("ponor_transactions_total", outcome="abort")
        self._open = telemetry.histogram("ponor_transaction_open_seconds")
        self._completion = telemetry.histogram("ponor_transaction_completion_seconds")
        self.timeouts: Final = telemetry.counter("ponor_transaction_timeouts_total")

    def ended(self, before: TransactionRecord | None, after: TransactionRecord | None, now_ms: int) -> None:
        """Compare the records before and after a write, and note a transaction whose last marker is
        durable.
        """
        if before is None or after is None or not (before.state.is_prepared and after.state.is_complete):
            return
        (self._commits if before.state.is_commit else self._aborts).add()
        # `max`, because the wall clock may have jumped back.
        self._open.record(max(0, before.update_ms - before.start_ms) * _US_PER_MS)
        self._completion.record(max(0, now_ms - before.update_ms) * _US_PER_MS)

    def answered(self, request: str, error: ErrorCode) -> None:
        """Note the answer to a request: init, add, verify or end."""
        if error is not ErrorCode.NONE:
            self._telemetry.counter("ponor_transaction_errors_total", request=request, error=error.name).add()
