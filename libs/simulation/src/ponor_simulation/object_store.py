"""A simulated object store: durable contents, unreliable calls.

A bucket exists longer than all processes; processes reach it through the `ObjectStore` port. A call
may fail before or after it was applied, a get may return too few bytes, and a put may be applied
after its process ended.
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
    """Probabilities per call, and bounds of a call's duration in seconds."""

    before: float = 0.0
    """The call fails without being applied (503)."""
    after: float = 0.0
    """The call is applied and then fails (timeout)."""
    short_read: float = 0.0
    """A get returns fewer bytes than stored."""
    latency_s: tuple[float, float] = (0.005, 0.06)
    down: bool = False
    """Every call fails without being applied."""


@dataclass(slots=True)
class OpenUpload:
    """A multipart upload: parts by number, each with its etag.

    Attributes:
        owner: the process life that created it and received its id; None if no process received it.
        given_up: a process called abort; if the call fails, the collector must abort the upload.
    """

    key: str
    begun_at_ms: int
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    owner: Incarnation | None = None
    given_up: bool = False

    @property
    def is_forgotten_by(self) -> str:
        """The live process that has the id and did not call abort; empty if there is none."""
        if self.owner is None or not self.owner.alive or self.given_up:
            return ""
        return self.owner.name


class SimBucket:
    """The stored objects. `calls` counts attempts by operation, `applied` those that took effect."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.put_at_ms: dict[str, int] = {}
        """Time of each put, by the bucket's own correct clock."""
        self.multiparts: dict[str, OpenUpload] = {}
        """Open multipart uploads by id."""
        self.multiparts_begun = 0
        self.calls: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.unanswered = 0
        """Calls that were applied and then failed."""
        self.short_reads = 0
        self.listing_pages = 0
        """Pages of listings after the first."""
        self.read_bytes = 0
        self.written_bytes = 0
        self.on_delete: Callable[[str], None] | None = None
        """Called before an existing object is deleted."""
        self.on_put: Callable[[str], None] | None = None
        """Called after an object was created."""
        self.on_applied: Callable[[str, str], bool] = lambda _operation, _process: False
        """Called with the operation and process of each applied call; returns whether the answer is lost."""


class SimObjectStore:
    """`ObjectStore` on a bucket. Processes may share it."""

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
        """Create an object at once.

        Raises:
            ObjectAlreadyExistsError: the key is taken.
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
        """List page by page, as S3 does: changes between two pages may be visible or not."""
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
        pass

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
        """Apply an operation at some time within the call's duration, even if the calling process has
        ended.
        """
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
