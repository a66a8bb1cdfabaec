"""Counts every call that leaves for a store, as stores bill them.

Stands directly around the raw store and inside of the retries, so that a repeated call counts again. The classes are those of
price lists: PUT, POST, LIST and every call of a multipart upload are "put", but for its abort, which is a DELETE; GET and HEAD are "get"; DELETE is "delete".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol, runtime_checkable

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectInfo, ObjectStore, ObjectStoreError
from ponor_runtime.telemetry import NO_SPAN, Telemetry
from ponor_runtime.tracing import AttributeValue, SpanKind

from s3stream.stores.buffers import total_bytes
from s3stream.stores.reads_in_place import get_into, reads_in_place

REQUEST_CLASSES: Final[Mapping[str, str]] = {
    "put": "put",
    "multipart_create": "put",
    "multipart_part": "put",
    "multipart_copy": "put",
    "multipart_complete": "put",
    "multipart_list": "put",
    "list": "put",
    "get": "get",
    "head": "get",
    "delete": "delete",
    "multipart_abort": "delete",
}
LIST_PAGE_KEYS: Final = 1000
DELETE_BATCH_KEYS: Final = 1000
_SINGLE_PUT: Final[Mapping[str, int]] = {"put": 1}


@runtime_checkable
class TellsPutRequests(Protocol):
    """A raw store whose puts are not always one call."""

    def requests_of_put(self, size_bytes: int, *, taken: bool) -> Mapping[str, int]:
        """Calls by operation (names of `REQUEST_CLASSES`) that a put makes; `taken`: one that found its key taken."""
        ...


@runtime_checkable
class DescribesCalls(Protocol):
    """A raw store whose calls have names and places in OpenTelemetry's conventions."""

    def call_attributes(self, op: str, key: str) -> Mapping[str, str]:
        """Span attributes of one call: the RPC, the bucket, the key as the server sees it."""
        ...


class MeteredObjectStore:
    """`ObjectStore` that counts calls, bytes and errors of another one, and measures durations."""

    def __init__(self, inner: ObjectStore, telemetry: Telemetry, clock: Clock) -> None:
        self._inner = inner
        self._telemetry = telemetry
        self._clock = clock
        self._requests = {
            op: telemetry.counter("ponor_object_store_requests_total", **{"op": op, "class": request_class})
            for op, request_class in REQUEST_CLASSES.items()
        }
        self._read_bytes = telemetry.counter("ponor_object_store_bytes_total", direction="read")
        self._written_bytes = telemetry.counter("ponor_object_store_bytes_total", direction="write")
        self._durations = {
            op: telemetry.histogram("ponor_object_store_request_seconds", op=op)
            for op in ("put", "get", "list", "delete")
        }

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        size_bytes = total_bytes(buffers)
        taken = False
        try:
            with self._measured("put"), self._step("put", key, 0, size_bytes):
                await self._inner.put(key, buffers)
        except ObjectAlreadyExistsError:
            taken = True
            raise
        finally:
            # A multipart upload that failed half-way counts in full: the store does not say how far it came.
            for op, number in self._put_requests(size_bytes, taken=taken).items():
                self._requests[op].add(number)
            self._written_bytes.add(size_bytes)

    async def get(self, key: str, start: int, length: int) -> bytes:
        self._requests["get"].add(1)
        with self._measured("get"), self._step("get", key, start, length):
            data = await self._inner.get(key, start, length)
        self._read_bytes.add(len(data))
        return data

    @property
    def reads_in_place(self) -> bool:
        return reads_in_place(self._inner)

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        self._requests["get"].add(1)
        with self._measured("get"), self._step("get", key, start, total_bytes(places)):
            found_bytes = await get_into(self._inner, key, start, places)
        self._read_bytes.add(found_bytes)
        return found_bytes

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        self._requests["get"].add(1)
        with self._measured("get"), self._step("get", key, -length, length):
            data, size = await self._inner.get_tail(key, length)
        self._read_bytes.add(len(data))
        return data, size

    async def delete(self, keys: Sequence[str]) -> None:
        self._requests["delete"].add(-(-len(keys) // DELETE_BATCH_KEYS))
        with self._measured("delete"):
            await self._inner.delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self._requests["list"].add(1)
        listed = 0
        with self._measured("list"):
            async for info in self._inner.list(prefix):
                if listed and listed % LIST_PAGE_KEYS == 0:
                    self._requests["list"].add(1)
                listed += 1
                yield info

    async def close(self) -> None:
        await self._inner.close()

    def _put_requests(self, size_bytes: int, *, taken: bool) -> Mapping[str, int]:
        if isinstance(self._inner, TellsPutRequests):
            return self._inner.requests_of_put(size_bytes, taken=taken)
        return _SINGLE_PUT

    def _step(self, op: str, key: str, start: int, length: int) -> AbstractContextManager[Any]:
        """A span, if the caller is being traced; a negative start counts from the end of the object."""
        if self._telemetry.tracing is None:
            return NO_SPAN
        described = self._inner.call_attributes(op, key) if isinstance(self._inner, DescribesCalls) else {}
        attributes: dict[str, AttributeValue] = {
            **described,
            "ponor.object.key": key,
            "ponor.object.start": start,
            "ponor.object.bytes": length,
        }
        return self._telemetry.step(f"ponor.object_store.{op}", attributes, kind=SpanKind.CLIENT)

    @contextmanager
    def _measured(self, op: str) -> Iterator[None]:
        started_ns = self._clock.monotonic_ns()
        try:
            yield
        except ObjectStoreError as error:
            name = type(error).__name__
            self._telemetry.counter("ponor_object_store_errors_total", op=op, error=name).add(1)
            raise
        finally:
            self._durations[op].record((self._clock.monotonic_ns() - started_ns) // 1000)
