"""Deletion of slots below a committed trim point (rule R4): in the background, in small batches, with pauses.

Correctness does not depend on it: the next recovery and the garbage collector delete remaining slots. A trim
point moves when an upload ends. Other requests are often urgent then: the next step of a move, or the first
appends after a failover. Deletions slow them down in stores that delete key by key: in SeaweedFS, a put
during a call that deletes 60 slots took four times as long (docs/design/object-wal.md#slot-deletion).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.tasks import BackgroundTasks, Wake
from ponor_runtime.telemetry import Telemetry

from s3stream.object_wal.slot_keys import slot_key
from s3stream.ports import WalName

LOG = logging.getLogger(__name__)
LINGER_S: Final = 1.0
"""Pause after the trim point moved. Most urgent requests end within it."""
KEYS_PER_CALL_MIN: Final = 20
KEYS_PER_CALL_MAX: Final = 1_000
BACKLOG_CALLS: Final = 8
"""One call deletes an eighth of a long queue, so that deletion keeps up with any store."""
REST: Final = 3
"""Pause after a call, as a multiple of the call's duration."""


class SlotDeletion:
    """Deletes the slots [deleted, wanted) of the process's own log in order, in a single task."""

    def __init__(
        self, store: ObjectStore, name: WalName, tasks: BackgroundTasks, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._store = store
        self._name = name
        self._tasks = tasks
        self._clock = clock
        self._wake = Wake(clock)
        self._hurries = False
        self._deleted = 0
        self._wanted = 0
        self._running: asyncio.Task[None] | None = None
        self._count = telemetry.counter("ponor_wal_object_deleted_total")

    def delete_below(self, sequence: int) -> None:
        """Request deletion of the slots below `sequence`. Their data is committed and the controller
        has the trim point.
        """
        assert sequence >= self._wanted, "the trim point went back"
        self._wanted = sequence
        if self._deleted < sequence and (self._running is None or self._running.done()):
            self._running = self._tasks.spawn(self._run(), "delete slots")

    async def finish(self) -> None:
        """Delete all requested slots without further pauses. After a failure, the garbage collector or a
        recovery deletes the rest.
        """
        self._hurries = True
        self._wake.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        """Delete all requested slots. After a failure, the next request retries the rest."""
        await self._rest(LINGER_S)
        try:
            while self._deleted < self._wanted:
                assert self._deleted <= self._wanted
                left = self._wanted - self._deleted
                end = self._deleted + (min(left, KEYS_PER_CALL_MAX) if self._hurries else keys_per_call(left))
                began_ns = self._clock.monotonic_ns()
                await self._store.delete([slot_key(self._name, at) for at in range(self._deleted, end)])
                self._count.add(end - self._deleted)
                self._deleted = end
                if end < self._wanted:
                    await self._rest(REST * (self._clock.monotonic_ns() - began_ns) / 1e9)
        except ObjectStoreError as error:
            LOG.warning("slots below %d of %s are not deleted yet: %s", self._wanted, self._name, error)

    async def _rest(self, seconds: float) -> None:
        if not self._hurries:
            await self._wake.wait(seconds)


async def delete_recovered(store: ObjectStore, name: WalName, sequences: Sequence[int], clock: Clock) -> None:
    """Delete slots of a recovered log in batches with pauses. After a failure, the garbage collector
    deletes the rest.
    """
    left = list(sequences)
    try:
        while left:
            count = keys_per_call(len(left))
            began_ns = clock.monotonic_ns()
            await store.delete([slot_key(name, at) for at in left[:count]])
            del left[:count]
            if left:
                await clock.sleep(REST * (clock.monotonic_ns() - began_ns) / 1e9)
    except ObjectStoreError as error:
        LOG.warning("%d slots of %s are left to the collector: %s", len(left), name, error)


def keys_per_call(left: int) -> int:
    """Return how many of the remaining slots one call deletes."""
    assert left > 0
    return min(left, max(KEYS_PER_CALL_MIN, left // BACKLOG_CALLS), KEYS_PER_CALL_MAX)
