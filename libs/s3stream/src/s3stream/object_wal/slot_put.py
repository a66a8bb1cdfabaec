"""Put of one slot: repeated until the slot is in the store or its key belongs to another process (rule R2).

After timeouts, overload and conflicts the put is repeated with the same key and bytes, first by the
store's retries and then here, because the records exist nowhere else. If the key exists, the slot
is read back; only this process's nonce in it means success.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectStore,
    ObjectStoreError,
)
from ponor_runtime.randomness import Randomness
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry

from s3stream.backoff import CallBackoff, SharedBackoff
from s3stream.errors import ObjectCorruptError, StorageFailedError
from s3stream.object_wal.hedged_put import Copy, break_off, put_hedged
from s3stream.object_wal.hedging import Hedging
from s3stream.object_wal.slot import LABEL_BYTES, Label, SlotKind, decode_label
from s3stream.object_wal.slot_keys import slot_key

LOG = logging.getLogger(__name__)
_RETRY_MS_FIRST: Final = 50
_COPY_S_MAX: Final = 1.0
"""How long an unneeded copy may continue. Ending the copy immediately would close its connection, and the
next put would need a new one. Without a limit, the copy would be repeated until its slot is trimmed."""


class SlotPut:
    """Puts slots of one writer."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        tasks: BackgroundTasks,
        hedging: Hedging,
        retry_ms_max: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._backoff = SharedBackoff(clock)
        self._randomness = randomness
        self._retry_ms_max = retry_ms_max
        self._tasks = tasks
        self._hedging = hedging
        self._left: set[asyncio.Task[None]] = set()
        self._hedges_won = telemetry.counter("ponor_wal_object_hedges_won_total")
        self._read_backs = {
            result: telemetry.counter("ponor_wal_object_read_backs_total", result=result)
            for result in ("own", "foreign")
        }

    async def put(self, label: Label, buffers: Sequence[Buffer]) -> None:
        """Return when the slot is in the store. Retries without limit.

        Raises:
            StorageFailedError: the key belongs to another process: a fence, or a slot of a process
                with the same epoch.
        """
        key = slot_key(label.name, label.sequence)
        began_ns = self._clock.monotonic_ns()
        self._hedging.began()
        await self._put_until_known(key, label, buffers)
        self._backoff.answered()
        self._hedging.answered((self._clock.monotonic_ns() - began_ns) / 1e6)

    async def finish(self) -> None:
        """Return when no copy in flight can still be stored."""
        if self._left:
            await asyncio.wait(self._left)

    async def _put_until_known(self, key: str, label: Label, buffers: Sequence[Buffer]) -> None:
        hedges = self._hedging.hedges(label.object_bytes)
        backoff = self._backoff.call()
        attempt = 0
        while True:
            try:
                won = await put_hedged(self._store, key, buffers, hedges=hedges, leave=self._leave)
                self._hedges_won.add(won > 0)
                return
            except ObjectAlreadyExistsError:
                if await self._is_own(key, label):
                    return
            except ObjectStoreError as error:
                await self._wait(key, attempt, error, backoff)
            attempt += 1

    async def _is_own(self, key: str, label: Label) -> bool:
        """Return whether this process wrote the slot under the key. Return False also if the slot could not
        be read; the put is then repeated.

        A key that existed and is absent now counts as unreadable. Copies of one put race each other, and some
        stores refuse the loser before they show the winner. If a recoverer read the slot and deleted it, the
        records are committed, and the fence behind the slot ends this log (rules R2 and R3).
        """
        try:
            tail, _ = await self._store.get_tail(key, LABEL_BYTES)
            found = decode_label(key, label.name, label.sequence, tail)
        except ObjectCorruptError as error:
            raise StorageFailedError(
                f"{key}: the key is taken by an object that is not a slot: {error}"
            ) from error
        except ObjectStoreError as error:
            await self._wait(key, 0, error, self._backoff.call())
            return False
        if (found.kind, found.nonce, found.object_bytes) == (label.kind, label.nonce, label.object_bytes):
            self._read_backs["own"].add(1)
            return True
        self._read_backs["foreign"].add(1)
        if found.kind is SlotKind.FENCE:
            raise StorageFailedError(f"{key}: the slot has a fence: another process has taken over this log")
        raise StorageFailedError(
            f"{key}: another process writes under node epoch {label.name.epoch}; two processes have the"
            " same epoch (was the controller restored from a backup?), or two clusters share a namespace in"
            " this store"
        )

    def _leave(self, copies: list[Copy]) -> None:
        if not copies:
            return
        if self._tasks.is_closed:
            break_off(copies)
            return
        left = self._tasks.spawn(_let_end(copies), "late copies of a slot")
        self._left.add(left)
        left.add_done_callback(self._left.discard)

    async def _wait(self, key: str, attempt: int, error: ObjectStoreError, backoff: CallBackoff) -> None:
        ceiling_ms = min(_RETRY_MS_FIRST << min(attempt, 20), self._retry_ms_max)
        delay_s = (ceiling_ms / 2 + self._randomness.uniform(0, ceiling_ms / 2)) / 1000
        LOG.warning("retrying slot %s in %.1f s: %s: %s", key, delay_s, type(error).__name__, error)
        await backoff.wait(delay_s)


async def _let_end(copies: list[Copy]) -> None:
    try:
        await asyncio.wait(copies, timeout=_COPY_S_MAX)
    finally:
        break_off(copies)
