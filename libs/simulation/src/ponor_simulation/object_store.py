"""A simulated object store: durable, and unreliable on the way.

What lives here: a bucket that outlives all processes, and the `ObjectStore` port through which a process reaches it. A call may fail
before it was applied, or after ("timeout, but applied"); a get may come back short; a put that is under way when its process dies may
land afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreUnavailableError,
)

from ponor_simulation.chance import wall_ms_at
from ponor_simulation.loop import INCARNATION, Incarnation, VirtualTimeLoop
from ponor_simulation.trace import Trace

_T = TypeVar("_T")
LISTING_PAGE_KEYS: Final = 1_000


@dataclass(slots=True)
class StoreFaults:
    """Probabilities per call, and how long calls take, in seconds."""

    before: float = 0.0
    """Fails without having been applied (503)."""
    after: float = 0.0
    """Is applied, and then fails (timeout)."""
    short_read: float = 0.0
    """A get returns less than the store holds."""
    latency_s: tuple[float, float] = (0.005, 0.06)
    down: bool = False
    """Every call fails, unapplied."""


@dataclass(slots=True)
class OpenUpload:
    """An object on its way in parts: each under its number, with the name that the store gave it.

    Attributes:
        owner: the life of the process that began it and was told its name; None: nobody was.
        given_up: somebody called for its end; what is still open then is the collector's.
    """

    key: str
    begun_at_ms: int
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    owner: Incarnation | None = None
    given_up: bool = False

    @property
    def is_forgotten_by(self) -> str:
        """The life that knows the upload and did not call for its end; empty if there is none."""
        if self.owner is None or not self.owner.alive or self.given_up:
            return ""
        return self.owner.name


class SimBucket:
    """The objects, and what was asked of them: `calls` counts attempts by operation, `applied` those that took effect."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.put_at_ms: dict[str, int] = {}
        """When each object came to be, by the bucket's own clock, which goes right."""
        self.multiparts: dict[str, OpenUpload] = {}
        """By upload id: what was begun in parts and neither completed nor aborted."""
        self.multiparts_begun = 0
        self.calls: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.unanswered = 0
        """Calls that were applied and failed all the same."""
        self.short_reads = 0
        self.listing_pages = 0
        """Pages behind the first one of a listing."""
        self.read_bytes = 0
        self.written_bytes = 0
        self.on_delete: Callable[[str], None] | None = None
        """Told of each object that is there and is about to be deleted."""
        self.on_put: Callable[[str], None] | None = None
        """Told of each object that came to be."""
        self.on_applied: Callable[[str, str], bool] = lambda _operation, _process: False
        """Told of each call that took effect, and whose it is; whether its answer is lost."""


class SimObjectStore:
    """`ObjectStore` on a bucket. Any number of processes may share it."""

    def __init__(
        self, loop: VirtualTimeLoop, seed: str, trace: Trace, bucket: SimBucket | None = None
    ) -> None:
        self._loop = loop
        self._chance = random.Random(f"object store {seed}")
        self._trace = trace
        self.bucket = bucket or SimBucket()
        self.faults = StoreFaults()
        self.listing_page_keys = LISTING_PAGE_KEYS

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)

        await self.call("put", key, lambda: self.create(key, data))

    def create(self, key: str, data: bytes) -> None:
        """The object is there from now on.

        Raises:
            ObjectAlreadyExistsError: it was there before.
        """
        if key in self.bucket.objects:
            raise ObjectAlreadyExistsError(key)
        self.bucket.objects[key] = data
        self.bucket.put_at_ms[key] = self.now_ms()
        self.bucket.written_bytes += len(data)
        if self.bucket.on_put is not None:
            self.bucket.on_put(key)

    def now_ms(self) -> int:
        """The bucket's clock."""
        return wall_ms_at(self._loop)

    async def get(self, key: str, start: int, length: int) -> bytes:
        def applied() -> bytes:
            data = self._object(key)[start : start + length]
            return self._maybe_short(data)

        return await self.call("get", key, applied)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        def applied() -> tuple[bytes, int]:
            data = self._object(key)
            return self._maybe_short(data[-length:] if length else b""), len(data)

        return await self.call("get", key, applied)

    async def delete(self, keys: Sequence[str]) -> None:
        def applied() -> None:
            for key in keys:
                if self.bucket.on_delete is not None and key in self.bucket.objects:
                    self.bucket.on_delete(key)
                self.bucket.objects.pop(key, None)
                self.bucket.put_at_ms.pop(key, None)

        await self.call("delete", f"{len(keys)} keys", applied)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Page by page, as S3 has it: what comes and goes between two pages may be seen or not."""
        behind = ""
        while True:
            page = await self.call("list", prefix, partial(self._page, prefix, behind))
            for row in page:
                yield row
            if len(page) < self.listing_page_keys:
                return
            behind = page[-1].key

    def _page(self, prefix: str, behind: str) -> Sequence[ObjectInfo]:
        objects, put_at_ms = self.bucket.objects, self.bucket.put_at_ms
        found = sorted(key for key in objects if key.startswith(prefix) and key > behind)
        page = found[: self.listing_page_keys]
        self.bucket.listing_pages += bool(behind)
        return [ObjectInfo(key, len(objects[key]), put_at_ms.get(key)) for key in page]

    async def close(self) -> None:
        """Nothing to release: a simulated connection costs nothing."""

    def _object(self, key: str) -> bytes:
        data = self.bucket.objects.get(key)
        if data is None:
            raise ObjectNotFoundError(key)
        return data

    def _maybe_short(self, data: bytes) -> bytes:
        if data and self._chance.random() < self.faults.short_read:
            data = data[: self._chance.randrange(len(data))]
            self.bucket.short_reads += 1
        self.bucket.read_bytes += len(data)
        return data

    async def call(self, operation: str, what: str, apply: Callable[[], _T]) -> _T:
        """Apply at some moment of the call's duration, outside of the calling process: its death does not stop what is under way."""
        self.bucket.calls[operation] += 1
        there, back = (
            self._chance.uniform(*self.faults.latency_s) / 2,
            self._chance.uniform(*self.faults.latency_s) / 2,
        )
        dice = self._chance.random()
        answer: asyncio.Future[Any] = self._loop.create_future()
        fails_before = self.faults.down or dice < self.faults.before
        fails_after = not fails_before and dice < self.faults.before + self.faults.after
        life = INCARNATION.get()
        process = "" if life is None else life.name.partition("#")[0]

        def arrive() -> None:
            nonlocal fails_after
            outcome: Any = None
            error: ObjectStoreError | None = None
            if fails_before:
                error = ObjectStoreUnavailableError(f"503 for {operation} {what}")
            else:
                try:
                    outcome = apply()
                except ObjectStoreError as refused:
                    error = refused
                else:
                    self.bucket.applied[operation] += 1
                    fails_after = self.bucket.on_applied(operation, process) or fails_after
                    self.bucket.unanswered += fails_after
                if fails_after:
                    error = ObjectStoreUnavailableError(f"timeout of {operation} {what}")
            self._trace.record(
                self._loop.time(), "store", operation, what, type(error).__name__ if error else "ok"
            )
            self._loop.call_later(back, _settle, answer, outcome, error, context=self._loop.outside)

        self._loop.call_later(there, arrive, context=self._loop.outside)
        result: _T = await answer
        return result


def _settle(answer: asyncio.Future[Any], outcome: object, error: ObjectStoreError | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(outcome)
