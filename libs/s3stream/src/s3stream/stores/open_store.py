"""Composition of object stores: from a URL to a store whose calls are retried, limited and metered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from ponor_runtime.object_store import MultipartStore, ObjectStore
from ponor_runtime.runtime import Runtime

from s3stream.stores.congestion import PARTS_IN_FLIGHT_MAX, ConcurrencyLimit
from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stores.directory_multipart import DirectoryMultipartStore
from s3stream.stores.metered import Meter
from s3stream.stores.policy import (
    PART_OPERATIONS,
    PolicyMultipartStore,
    PolicyObjectStore,
    StorePolicy,
)
from s3stream.stores.retrying import Retries, RetrySettings
from s3stream.stores.s3 import S3ObjectStore
from s3stream.stores.s3_location import parse_s3_location


async def open_object_store(
    url: str, *, runtime: Runtime, environment: Mapping[str, str], retry: RetrySettings | None = None
) -> ObjectStore:
    """Open `file://DIR` or `s3://BUCKET/PREFIX?endpoint=URL`.

    Args:
        url: location of the objects; `s3_location.py` lists the parameters of S3.
        runtime: clock, randomness, disk and telemetry of this process.
        environment: source of the AWS_* variables.
        retry: bounds of the retries.

    Raises:
        ValueError: the URL is malformed or names no known kind of store.
        ObjectStoreError: the directory cannot be used. An S3 server is not contacted here.
    """
    raw = await open_raw_store(url, runtime=runtime, environment=environment)
    return wrap_object_store(raw, runtime=runtime, retry=retry)


async def open_stores(
    url: str,
    *,
    runtime: Runtime,
    environment: Mapping[str, str],
    policy: StorePolicy | None = None,
    retry: RetrySettings | None = None,
) -> tuple[ObjectStore, MultipartStore]:
    """Open a store and its multipart interface, for processes that compact or collect garbage.

    `policy` is the process's own, for example a rate limit; the other arguments and the errors are those of
    `open_object_store`.
    """
    raw = await open_raw_store(url, runtime=runtime, environment=environment)
    try:
        parts = await open_raw_multipart_store(url, runtime=runtime, environment=environment)
    except BaseException:
        await raw.close()
        raise
    return wrap_stores(raw, parts, runtime=runtime, policy=policy, retry=retry)


def wrap_stores(
    raw: ObjectStore,
    raw_parts: MultipartStore,
    *,
    runtime: Runtime,
    policy: StorePolicy | None = None,
    retry: RetrySettings | None = None,
) -> tuple[ObjectStore, MultipartStore]:
    """Apply the policies to both interfaces of one raw store."""
    store = wrap_object_store(raw, runtime=runtime, policy=policy, retry=retry)
    return store, wrap_multipart_store(raw_parts, store, runtime=runtime, policy=policy, retry=retry)


def wrap_object_store(
    raw: ObjectStore,
    *,
    runtime: Runtime,
    policy: StorePolicy | None = None,
    retry: RetrySettings | None = None,
) -> PolicyObjectStore:
    """Apply retries, the process's own policy, the concurrency limit and the meter to a raw store.

    In this order, the process's policy sees every attempt and every "slow down" error. A call that pauses
    before a retry, or waits for that policy, takes no place in the concurrency limit, and its wait does not
    count as the store's time.
    """
    telemetry = runtime.telemetry
    retries = Retries(clock=runtime.clock, randomness=runtime.randomness, telemetry=telemetry, settings=retry)
    own = () if policy is None else (policy,)
    meter = Meter(raw, telemetry, runtime.clock)
    return PolicyObjectStore(raw, (retries, *own, ConcurrencyLimit(telemetry=telemetry), meter))


def wrap_multipart_store(
    raw: MultipartStore,
    store: ObjectStore,
    *,
    runtime: Runtime,
    policy: StorePolicy | None = None,
    retry: RetrySettings | None = None,
) -> PolicyMultipartStore:
    """Apply the same policies to a raw multipart store; `store` is the store of whole objects at the same
    place.
    """
    retries = Retries(
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        settings=retry,
        operations=PART_OPERATIONS,
    )
    own = () if policy is None else (policy,)
    limit = ConcurrencyLimit(writes_in_flight_max=PARTS_IN_FLIGHT_MAX)
    meter = Meter(raw, runtime.telemetry, runtime.clock, PART_OPERATIONS)
    return PolicyMultipartStore(raw, (retries, *own, limit, meter), store)


async def open_raw_store(url: str, *, runtime: Runtime, environment: Mapping[str, str]) -> ObjectStore:
    """Open a store without policies, for probes, which inspect every answer.

    Raises:
        ValueError, ObjectStoreError: as `open_object_store`.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return S3ObjectStore(parse_s3_location(url, environment))
    if scheme == "file":
        return await DirectoryObjectStore.open(runtime.disk, _directory(url))
    raise ValueError(f"object store URL {url!r}: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL is expected")


async def open_raw_multipart_store(
    url: str, *, runtime: Runtime, environment: Mapping[str, str]
) -> MultipartStore:
    """Open a multipart store without policies.

    Raises:
        ValueError, ObjectStoreError: as `open_object_store`.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        # Imported here: botocore costs half a second and 20 MiB, which brokers and controllers save.
        from s3stream.stores.botocore_client import BotocoreBucket
        from s3stream.stores.botocore_multipart import BotocoreMultipartStore

        return BotocoreMultipartStore(BotocoreBucket(parse_s3_location(url, environment)))
    if scheme == "file":
        return await DirectoryMultipartStore.open(
            runtime.disk, _directory(url), clock=runtime.clock, randomness=runtime.randomness
        )
    raise ValueError(f"object store URL {url!r}: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL is expected")


def _directory(url: str) -> PurePosixPath:
    # Taken literally: a path may contain '%', '?' and '#', and users who write file://DIR do not encode DIR.
    path = PurePosixPath(url.removeprefix("file://"))
    if not path.is_absolute() or path == PurePosixPath("/") or ".." in path.parts:
        raise ValueError(f"object store URL {url!r}: file:///ABSOLUTE/DIR is expected (three slashes)")
    return path
