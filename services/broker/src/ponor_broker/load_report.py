"""Load reports to the leading controller, while there is traffic and once when it ends.

A report contains the differences between two readings of counters. The balancer smooths and weighs them. A
reading costs one comparison per open partition; the counters cost one addition per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ponor.controller.v1.session_service_pb2 import LoadReport, PartitionLoad
from ponor_runtime.clock import Clock
from ponor_runtime.process import Process

from ponor_broker.partitions.partition import Partition

PARTITIONS_MAX: Final = 2_000
"""Partitions in one report, the busiest first: about 80 KiB, a third of a frame."""


class LoadReporter:
    """Reads the counters every `interval_ms` and sends the differences."""

    def __init__(
        self,
        clock: Clock,
        process: Process,
        *,
        interval_ms: int,
        partitions: Callable[[], Iterable[Partition]],
        requests: Callable[[], int],
        send: Callable[[LoadReport], None],
    ) -> None:
        """`requests` returns the number of answered requests; `send` takes a report without waiting."""
        self._clock = clock
        self._process = process
        self._interval_ms = interval_ms
        self._partitions = partitions
        self._requests = requests
        self._send = send
        self._counted: dict[Partition, tuple[int, int]] = {}
        self._looked_ns = clock.monotonic_ns()
        self._requests_seen = requests()
        self._cpu_ns_seen = process.cpu_ns()
        self._was_busy = False

    async def run(self) -> None:
        """Send reports until cancelled."""
        while True:
            await self._clock.sleep(self._interval_ms / 1000)
            self.look()

    def look(self) -> None:
        """Compare the counters with the last reading and send the differences. After two readings without
        traffic, send nothing.
        """
        now_ns = self._clock.monotonic_ns()
        window_ms = max(1, (now_ns - self._looked_ns) // 1_000_000)
        self._looked_ns = now_ns
        loads = self._loads(window_ms)
        requests, cpu_ns = self._requests(), self._process.cpu_ns()
        report = LoadReport(
            window_ms=window_ms,
            in_bytes_per_s=sum(load.in_bytes_per_s for load in loads),
            out_bytes_per_s=sum(load.out_bytes_per_s for load in loads),
            requests_per_s=(requests - self._requests_seen) * 1000 // window_ms,
            cpu_permille=(cpu_ns - self._cpu_ns_seen) // (window_ms * 1000),
        )
        self._requests_seen, self._cpu_ns_seen = requests, cpu_ns
        if loads or self._was_busy:
            loads.sort(key=lambda load: load.in_bytes_per_s + load.out_bytes_per_s, reverse=True)
            report.partitions.extend(loads[:PARTITIONS_MAX])
            self._send(report if loads else LoadReport(window_ms=window_ms))
        self._was_busy = bool(loads)

    def _loads(self, window_ms: int) -> list[PartitionLoad]:
        """Return the loads of partitions with traffic since the last reading. Partitions that have closed
        since are omitted.
        """
        before, counted, loads = self._counted, {}, []
        for partition in self._partitions():
            now = (partition.bytes_in, partition.bytes_out)
            if now == (0, 0):
                continue
            counted[partition] = now
            bytes_in, bytes_out = before.get(partition, (0, 0))
            if now == (bytes_in, bytes_out):
                continue
            loads.append(
                PartitionLoad(
                    topic_id=partition.identity.topic_id,
                    partition=partition.identity.index,
                    in_bytes_per_s=(now[0] - bytes_in) * 1000 // window_ms,
                    out_bytes_per_s=(now[1] - bytes_out) * 1000 // window_ms,
                )
            )
        self._counted = counted
        return loads
