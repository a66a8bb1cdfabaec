"""One partition on its way to service at this broker: its request, and what all attempts to open it left so far."""

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
    """The image says something new of the partition; the attempt to open it ended early."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A partition to open, the epoch to open it at, and its topic's own settings."""

    identity: PartitionId
    leader_epoch: int
    configs: Mapping[str, str]


class Stage(Enum):
    """What happens to the partition now."""

    WAITING = "waiting"
    """No attempt runs: it waits for a free place, or for the next try."""
    OPENING = "opening"
    """An attempt runs."""
    LEAVING = "leaving"
    """It will not be opened at this epoch: its streams are closed and an election is asked for."""
    OVER = "over"
    """It serves, or the image does not want it here at this epoch any more."""


class Opening:
    """Exists from the election of this broker until the partition serves, or until the image shows another epoch or leader.

    Attributes:
        request: what is to be opened.
        stage: see `Stage`.
        failures: attempts that failed, one behind the other.
        error: why the last one failed.
        stream_ids: streams that attempts asked to open. Whichever of them are open here belong to this object until the partition serves.
        batch: what is opened together with it. An opening belongs to one batch at a time.
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
        """See the class. `on_interrupted` is called when an attempt has let go of a partition that was interrupted."""
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
        """Which partition."""
        return self.request.identity.key

    @property
    def name(self) -> LedPartition:
        """As the controller is told."""
        return LedPartition(self.key, self.request.leader_epoch)

    def begin_attempt(self) -> None:
        """An attempt begins."""
        self.stage = Stage.OPENING
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End the attempt at its next read of the store, or the read that it waits for now."""
        self._is_interrupted = True
        if self._reading is not None:
            self._reading.cancel()

    def leave_attempt(self) -> None:
        """The attempt goes on without this partition."""
        assert self._is_interrupted, f"{self.request.identity} was not interrupted"
        self.stage = Stage.WAITING
        self._on_interrupted(self)

    def shares(self, reading: asyncio.Future[Any]) -> None:
        """Several partitions wait for this read: `interrupt` ends it for all of them."""
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
            raise OpeningInterruptedError(f"{self.request.identity} is not to be opened now") from None
        finally:
            self._reading = None
