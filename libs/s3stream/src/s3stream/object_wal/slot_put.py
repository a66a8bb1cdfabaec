"""One slot on its way into the store: put if absent, until it is known to be there or to belong to somebody else (rule R2).

Time-outs, overload and conflicts are repeated with the same key and the same bytes, by the one retry layer and, when that gives up, from here: the records are nowhere
else. A key that is found taken is read back; nothing but the own nonce in it means success.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
)
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from s3stream.errors import ObjectCorruptError, StorageFailedError
from s3stream.object_wal.hedged_put import put_hedged
from s3stream.object_wal.slot import LABEL_BYTES, Label, SlotKind, decode_label
from s3stream.object_wal.slot_keys import slot_key

LOG = logging.getLogger(__name__)
_RETRY_MS_FIRST: Final = 50
_HEDGE_LATENCIES: Final = 4
"""A put is slow when it takes so many times what puts take."""

_HEDGE_SHARE: Final = 0.05
"""Second puts, of all: a store or a line that is slow as a whole gets no faster by them."""

_HEDGES_SAVED_MAX: Final = 4.0


class SlotPut:
    """Puts slots of one writer."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        retry_ms_max: int,
        hedge_ms: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._retry_ms_max = retry_ms_max
        self._hedge_ms = hedge_ms
        self._hedges_left = _HEDGES_SAVED_MAX
        self._hedges = telemetry.counter("ponor_wal_object_hedges_total")
        self._read_backs = {
            result: telemetry.counter("ponor_wal_object_read_backs_total", result=result)
            for result in ("own", "foreign")
        }

    async def put(self, label: Label, buffers: Sequence[Buffer], *, expected_ms: float) -> None:
        """Return when the slot is in the store, however long that takes. `expected_ms` is what puts take, 0 if nobody knows yet.

        Raises:
            StorageFailedError: the key belongs to somebody else: a fence, or a process that was given the same epoch. Also when nobody can tell: the key
                was taken and is not there any more.
        """
        key = slot_key(label.name, label.sequence)
        hedge_ms = max(self._hedge_ms, _HEDGE_LATENCIES * expected_ms)
        self._hedges_left = min(self._hedges_left + _HEDGE_SHARE, _HEDGES_SAVED_MAX)
        attempt = 0
        while True:
            try:
                await put_hedged(
                    self._store, self._clock, key, buffers, hedge_ms=hedge_ms, may_hedge=self._may_hedge
                )
                return
            except ObjectAlreadyExistsError:
                if await self._is_own(key, label):
                    return
            except ObjectNotFoundError as error:
                raise StorageFailedError(
                    f"{key}: taken a moment ago and gone now, and nobody may delete it; {error}"
                ) from error
            except ObjectStoreError as error:
                await self._wait(key, attempt, error)
            attempt += 1

    async def _is_own(self, key: str, label: Label) -> bool:
        """Whether the slot under the key is ours. False: it could not be read; the put is tried again and finds it taken again."""
        try:
            tail, _ = await self._store.get_tail(key, LABEL_BYTES)
            found = decode_label(key, label.name, label.sequence, tail)
        except ObjectNotFoundError as error:
            raise StorageFailedError(
                f"{key}: taken a moment ago and gone now, and nobody may delete it"
            ) from error
        except ObjectCorruptError as error:
            raise StorageFailedError(f"{key}: taken, and not by a slot: {error}") from error
        except ObjectStoreError as error:
            await self._wait(key, 0, error)
            return False
        if (found.kind, found.nonce, found.object_bytes) == (label.kind, label.nonce, label.object_bytes):
            self._read_backs["own"].add(1)
            return True
        self._read_backs["foreign"].add(1)
        if found.kind is SlotKind.FENCE:
            raise StorageFailedError(f"{key}: a fence stands here; another process has taken this log over")
        raise StorageFailedError(
            f"{key}: another process writes under node epoch {label.name.epoch}; an epoch was given twice (was the controller restored from"
            " a backup?), or two clusters share a namespace in this store"
        )

    def _may_hedge(self) -> bool:
        if self._hedges_left < 1:
            return False
        self._hedges_left -= 1
        self._hedges.add(1)
        return True

    async def _wait(self, key: str, attempt: int, error: ObjectStoreError) -> None:
        ceiling_ms = min(_RETRY_MS_FIRST << min(attempt, 20), self._retry_ms_max)
        delay_s = (ceiling_ms / 2 + self._randomness.uniform(0, ceiling_ms / 2)) / 1000
        LOG.warning("slot %s is tried again in %.1f s: %s: %s", key, delay_s, type(error).__name__, error)
        await self._clock.sleep(delay_s)
