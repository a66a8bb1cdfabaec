"""The opening of one partition: its request, and the results of all attempts so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from ponor_runtime.identity import StreamId

from ponor_broker.partitions.handoff.move_operations import LedPartition
from ponor_broker.partitions.identity import PartitionId, PartitionKey

_T = TypeVar("_T")


class OpeningInterruptedError(Exception):
    """The image changed for this partition; the attempt to open it ended early."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A partition to open, its leader epoch, and its topic's own configs."""

    identity: PartitionId
    leader_epoch: int
    configs: Mapping[str, str]


class Stage(Enum):
    """State of the opening."""

    WAITING = "waiting"
    """No attempt runs: it waits for a free slot, or for the next attempt."""
    OPENING = "opening"
    """An attempt runs."""
    LEAVING = "leaving"
    """The partition will not be opened at this epoch: its streams are closed and an election is requested."""
    OVER = "over"
    """The partition serves, or this broker no longer leads it at this epoch."""


class Opening:
    """Exists from this broker's election until the partition serves, or until the image shows
    another epoch or leader.

    Attributes:
        request: what to open.
        stage: see `Stage`.
        failures: number of consecutive failed attempts.
        error: of the last failure.
        stream_ids: streams that attempts requested. Those that are open here belong to this object
            until the partition serves.
        batch: identifies the batch of openings that it belongs to now.
    """

    __slots__ = (
        "_is_interrupted",
        "_on_interrupted",
        "_reading",
        "batch",
        "error",
        "failures",
        "request",
        "stage",
        "stream_ids",
    )

    def __init__(
        self, request: OpenRequest, on_interrupted: Callable[[Opening], None] = lambda _: None
    ) -> None:
        """`on_interrupted` is called when an attempt has released an interrupted partition."""
        self.request: Final = request
        self.stage = Stage.WAITING
        self.failures = 0
        self.error: Exception | None = None
        self.stream_ids: dict[StreamId, None] = {}
        self.batch: object = None
        self._on_interrupted = on_interrupted
        self._is_interrupted = False
        self._reading: asyncio.Future[Any] | None = None

    @property
    def key(self) -> PartitionKey:
        """The partition."""
        return self.request.identity.key

    @property
    def name(self) -> LedPartition:
        """The partition in controller operations."""
        return LedPartition(self.key, self.request.leader_epoch)

    def begin_attempt(self) -> None:
        """Start an attempt."""
        self.stage = Stage.OPENING
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End the attempt at its current or next read of the store."""
        self._is_interrupted = True
        if self._reading is not None:
            self._reading.cancel()

    def leave_attempt(self) -> None:
        """Leave the attempt, which continues without this partition."""
        assert self._is_interrupted, f"{self.request.identity} was not interrupted"
        self.stage = Stage.WAITING
        self._on_interrupted(self)

    def shares(self, reading: asyncio.Future[Any]) -> None:
        """Register a read that several partitions wait for: `interrupt` ends it for all of them."""
        self._reading = reading
        if self._is_interrupted:
            reading.cancel()

    async def read(self, reading: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a read of the store, at most until `interrupt`.

        Raises:
            OpeningInterruptedError: it was interrupted.
        """
        self._reading = task = asyncio.ensure_future(reading)
        if self._is_interrupted:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the attempt itself is cancelled
            raise OpeningInterruptedError(f"the opening of {self.request.identity} was interrupted") from None
        finally:
            self._reading = None
