"""One partition's handoff at the source: stage, steps, span."""

from __future__ import annotations

from enum import Enum
from typing import Final

from ponor_metadata.nouns.topics import MoveRow
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import Span, TraceContext

from ponor_broker.partitions.handoff.move_operations import LedPartition
from ponor_broker.partitions.partition import Partition

SEALED_MS_MAX: Final = 3_000
"""Longest time in which a moving partition refuses appends, which clients retry. The upload of a tail takes
less while the store answers."""
MARGIN_MS: Final = 1_000


class Stage(Enum):
    """Stages of a handoff."""

    WAITING = "waiting"
    """Not started, or uploading the residue: the partition serves."""
    SEALED = "sealed"
    """No appends. Can be cancelled."""
    CLOSING = "closing"
    """CloseStreams may be in flight: only the image shows the outcome."""
    OVER = "over"
    """Ended, or cancelled."""


class Handoff:
    """The handoff of one partition to another broker."""

    __slots__ = (
        "_began_ns",
        "_clock",
        "_seen_ns",
        "_span",
        "_telemetry",
        "partition",
        "row",
        "stage",
        "took_ms",
        "unknown_streams",
        "was_refused",
    )

    def __init__(self, partition: Partition, row: MoveRow, clock: Clock, telemetry: Telemetry) -> None:
        self.partition = partition
        self.row = row
        self.stage = Stage.WAITING
        self.took_ms: dict[str, int] = {}
        """Durations of completed steps."""
        self.was_refused = False
        """Whether an election was refused."""
        self.unknown_streams: dict[StreamId, None] = {}
        """Streams that are open for the partition but do not belong to it; they are closed together with the
        partition.
        """
        self._clock = clock
        self._telemetry = telemetry
        self._seen_ns = self._began_ns = clock.monotonic_ns()
        self._span: Span | None = None
        context = TraceContext.parse(row.traceparent)
        if telemetry.tracing is not None and context is not None:
            identity = partition.identity
            about = {
                "messaging.destination.name": identity.topic,
                "messaging.destination.partition.id": str(identity.index),
            }
            self._span = telemetry.tracing.begin("ponor.move.depart", about, parent=context)

    @property
    def name(self) -> LedPartition:
        """The partition in controller operations."""
        return LedPartition(self.partition.identity.key, self.partition.leader_epoch)

    def residue_ms_left(self, now_ns: int) -> int:
        """Return how long the residue may still be uploaded before the streams must be closed.

        The controllers treat a source as stuck after twice the re-election timeout
        (`ponor_controller.domains.moves.overdue`).
        """
        timeout_ms = self._timeout_ms
        all_ms = max(2 * timeout_ms - SEALED_MS_MAX - MARGIN_MS, timeout_ms // 2)
        return max(all_ms - (now_ns - self._seen_ns) // 1_000_000, 1)

    @property
    def sealed_ms_max(self) -> int:
        """Longest time without appends before the handoff is cancelled."""
        return max(min(SEALED_MS_MAX, self._timeout_ms // 2), 1)

    @property
    def _timeout_ms(self) -> int:
        return self.row.elect_at_ms - self.row.begun_at_ms

    def begin_step(self) -> None:
        """Start to measure a step."""
        self._began_ns = self._clock.monotonic_ns()

    def end_step(self, step: str) -> None:
        """Record the duration of the running step, and start the next one."""
        now_ns = self._clock.monotonic_ns()
        self._telemetry.histogram("ponor_partition_move_seconds", step=step).record(
            (now_ns - self._began_ns) // 1000
        )
        self.took_ms[step] = (now_ns - self._began_ns) // 1_000_000
        if self._span is not None:
            self._span.step(f"ponor.move.{step}", self._began_ns, ended_ns=now_ns)
        self._began_ns = now_ns

    def over(self, result: str) -> None:
        """End the handoff: moved, cancelled or failed."""
        assert self.stage is not Stage.OVER
        if self.stage is Stage.CLOSING:
            self.end_step("close")
        self.stage = Stage.OVER
        self._telemetry.counter("ponor_partition_moves_total", result=result).add()
        if self._span is not None:
            self._span.end(error=None if result == "moved" else result)
