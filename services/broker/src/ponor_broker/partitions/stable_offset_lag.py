"""Metrics of the lag of the last stable offset behind the high watermark, which open transactions cause.

A transaction that no coordinator ends would otherwise stay unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import Steps, in_turns

from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.transactions.open_transactions import ALL_STABLE

INTERVAL_S: Final = 10.0
PARTITIONS_PER_STEP: Final = 1_000


class _Held(NamedTuple):
    """A last stable offset that an open transaction limits, and the time since which it has not advanced."""

    offset: int
    since_ns: int


class StableOffsetLag:
    """Surveys the open partitions at intervals. The gauges show the last survey."""

    def __init__(
        self, partitions: Callable[[], Iterable[Partition]], clock: Clock, telemetry: Telemetry
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._held: dict[Partition, _Held] = {}
        self._open = 0
        self._lag_max = 0
        self._age_max_ns = 0
        telemetry.gauge("ponor_partition_open_transactions", lambda: self._open)
        telemetry.gauge("ponor_partition_stable_offset_max_lag", lambda: self._lag_max)
        telemetry.gauge("ponor_partition_open_transaction_age_seconds", lambda: self._age_max_ns / 1e9)

    async def run(self) -> None:
        """Survey the partitions until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await in_turns(self.survey())

    def survey(self) -> Steps[None]:
        """Check every open partition once, and update the gauges."""
        now_ns = self._clock.monotonic_ns()
        held: dict[Partition, _Held] = {}
        open_here = lag_max = 0
        for number, partition in enumerate(self._partitions(), 1):
            transactions = partition.state.producers.transactions
            if transactions.first_unstable != ALL_STABLE:
                stable = transactions.first_unstable
                known = self._held.get(partition)
                held[partition] = known if known and known.offset == stable else _Held(stable, now_ns)
                open_here += len(transactions)
                lag_max = max(lag_max, partition.high_watermark - partition.last_stable_offset)
            if number % PARTITIONS_PER_STEP == 0:
                yield
        self._held, self._open, self._lag_max = held, open_here, lag_max
        self._age_max_ns = max((now_ns - each.since_ns for each in held.values()), default=0)
