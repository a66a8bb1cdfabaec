"""Metering of every call to a store: billed requests and their list price, bytes, errors, durations and trace
spans.

The meter is the innermost policy, so that a repeated call counts again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectStoreError
from ponor_runtime.telemetry import NO_SPAN, Telemetry
from ponor_runtime.tracing import AttributeValue, SpanKind

from s3stream.settings import StorageSettings
from s3stream.stores.policy import (
    LIST_PAGE_KEYS,
    OBJECT_OPERATIONS,
    REQUEST_CLASSES,
    Attempt,
    Listing,
    Operation,
    StorePolicy,
)

_T = TypeVar("_T")
_TRACED = frozenset({"put", "get"})
_WRITES = frozenset({"put", "multipart_part"})


@runtime_checkable
class CountsRequests(Protocol):
    """A raw store in which one operation may take several requests."""

    def requests_of(self, operation: str, size_bytes: int, *, taken: bool) -> Mapping[str, int]:
        """Return the requests of one operation by name (`REQUEST_CLASSES`). `taken`: the key existed."""
        ...


@runtime_checkable
class DescribesCalls(Protocol):
    """A raw store that describes its calls in OpenTelemetry's conventions."""

    def call_attributes(self, operation: str, key: str) -> Mapping[str, str]:
        """Return span attributes of one call: the RPC, the bucket, the key at the server."""
        ...


class Meter(StorePolicy):
    """Counts requests, bytes and errors of a raw store, and measures durations."""

    def __init__(
        self,
        raw: object,
        telemetry: Telemetry,
        clock: Clock,
        operations: Sequence[str] = OBJECT_OPERATIONS,
    ) -> None:
        self._raw = raw
        self._telemetry = telemetry
        self._clock = clock
        self._requests = {
            name: telemetry.counter(
                "ponor_object_store_requests_total", **{"op": name, "class": request_class}
            )
            for name, request_class in REQUEST_CLASSES.items()
        }
        self._read_bytes = telemetry.counter("ponor_object_store_bytes_total", direction="read")
        self._written_bytes = telemetry.counter("ponor_object_store_bytes_total", direction="write")
        self._durations = {
            name: telemetry.histogram("ponor_object_store_request_seconds", op=name) for name in operations
        }

    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        taken = False
        operation.read_bytes = 0
        try:
            with self._measured(operation.name), self._span(operation):
                return await attempt()
        except ObjectAlreadyExistsError:
            taken = True
            raise
        finally:
            # A failed multipart put counts in full, because the store does not report its progress.
            for name, number in self._requests_of(operation, taken=taken).items():
                self._requests[name].add(number)
            self._read_bytes.add(operation.read_bytes)
            if operation.name in _WRITES:
                self._written_bytes.add(operation.size_bytes)

    async def listing(self, operation: Operation, attempt: Listing[_T]) -> AsyncIterator[_T]:
        requests = self._requests[operation.name]
        requests.add(1)
        listed = 0
        with self._measured(operation.name):
            async for item in attempt():
                if listed and listed % LIST_PAGE_KEYS == 0:
                    requests.add(1)
                listed += 1
                yield item

    def _requests_of(self, operation: Operation, *, taken: bool) -> Mapping[str, int]:
        if isinstance(self._raw, CountsRequests):
            return self._raw.requests_of(operation.name, operation.size_bytes, taken=taken)
        return {operation.name: 1}

    def _span(self, operation: Operation) -> AbstractContextManager[Any]:
        """Open a span if the caller is being traced."""
        if self._telemetry.tracing is None or operation.name not in _TRACED:
            return NO_SPAN
        described: Mapping[str, str] = {}
        if isinstance(self._raw, DescribesCalls):
            described = self._raw.call_attributes(operation.name, operation.key)
        attributes: dict[str, AttributeValue] = {
            **described,
            "ponor.object.key": operation.key,
            "ponor.object.start": operation.start,
            "ponor.object.bytes": operation.size_bytes,
        }
        return self._telemetry.step(f"ponor.object_store.{operation.name}", attributes, kind=SpanKind.CLIENT)

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        started_ns = self._clock.monotonic_ns()
        try:
            yield
        except ObjectStoreError as error:
            kind = type(error).__name__
            self._telemetry.counter("ponor_object_store_errors_total", op=name, error=kind).add(1)
            raise
        finally:
            self._durations[name].record((self._clock.monotonic_ns() - started_ns) // 1000)


GB: Final = 1_000_000_000
_MILLION: Final = 1_000_000


def cost_usd(telemetry: Telemetry, request_class: str, usd_per_million: float) -> float:
    """Return the list price of all requests of a class so far."""
    requests = sum(
        value
        for labels, value in telemetry.counters("ponor_object_store_requests_total")
        if labels[1] == request_class
    )
    return requests * usd_per_million / _MILLION


def register_cost(telemetry: Telemetry, settings: StorageSettings) -> None:
    """Register the cost metrics. Deletes are free; storage and traffic are not included."""
    prices = {"put": settings.store_put_usd_per_million, "get": settings.store_get_usd_per_million}
    for request_class, price in prices.items():
        telemetry.calculated_counter(
            "ponor_store_cost_usd_total",
            partial(cost_usd, telemetry, request_class, price),
            **{"class": request_class},
        )

    def per_gb() -> float:
        appended_bytes = sum(value for _, value in telemetry.counters("ponor_wal_object_bytes_total"))
        total_usd = sum(cost_usd(telemetry, name, price) for name, price in prices.items())
        return total_usd * GB / appended_bytes if appended_bytes else 0.0

    telemetry.gauge("ponor_store_cost_usd_per_gigabyte", per_gb)
