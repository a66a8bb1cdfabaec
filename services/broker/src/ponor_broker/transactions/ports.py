"""Interfaces that the transaction coordinator needs from the rest of the broker, besides those of
`coordination/ports.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from ponor_runtime.identity import ProducerId

from ponor_broker.transactions.instructions import Markers
from ponor_broker.transactions.marker_sender import Refusals

TakeProducerId: TypeAlias = Callable[[], Awaitable[ProducerId | None]]
"""Returns a producer id that was never assigned before; None if the controller grants none in time."""
OffsetsPartitionOf: TypeAlias = Callable[[str], int]
"""Returns the partition of `__consumer_offsets` that stores a group."""


class MarkerPort(Protocol):
    """The part of `MarkerSender` that the coordinator uses."""

    def send(
        self, shard: int, coordinator_epoch: int, markers: Markers, done: Callable[[Refusals], None]
    ) -> None:
        """Send the markers of a transaction; call `done` when every marker is durable or needs no further
        attempt, never before this method returns.
        """
        ...

    def cancel(self, shard: int) -> None:
        """Stop sending the markers of a shard, and do not call `done` for its transactions."""
        ...
