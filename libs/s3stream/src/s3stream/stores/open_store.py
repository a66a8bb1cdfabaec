"""From a URL to a store that is metered, limited and retried: the one place that knows all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from ponor_runtime.object_store import MultipartStore, ObjectStore
from ponor_runtime.runtime import Runtime

from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stores.directory_multipart import DirectoryMultipartStore
from s3stream.stores.limited import LimitedObjectStore
from s3stream.stores.metered import MeteredObjectStore
from s3stream.stores.multipart_wrappers import (
    LimitedMultipartStore,
    MeteredMultipartStore,
    RetryingMultipartStore,
)
from s3stream.stores.retrying import RetryingObjectStore, RetrySettings
from s3stream.stores.s3 import S3ObjectStore
from s3stream.stores.s3_location import parse_s3_location


async def open_object_store(
    url: str, *, runtime: Runtime, environment: Mapping[str, str], retry: RetrySettings | None = None
) -> ObjectStore:
    """Open `file://DIR` or `s3://BUCKET/PREFIX?endpoint=URL`.

    Args:
        url: where the objects are; see `s3_location.py` for the parameters of S3.
        runtime: clock, randomness, disk and telemetry of this process.
        environment: where the usual AWS_* variables are read from.
        retry: bounds of the repetitions.

    Raises:
        ValueError: the URL names no store that there is, or cannot be read.
        ObjectStoreError: the directory cannot be used. An S3 server is not contacted here.
    """
    raw = await open_raw_store(url, runtime=runtime, environment=environment)
    return wrap_object_store(raw, runtime=runtime, retry=retry)


def wrap_object_store(
    raw: ObjectStore, *, runtime: Runtime, retry: RetrySettings | None = None
) -> ObjectStore:
    """Put metering, limits and retries around a raw store, in the order in which every repeated call counts again."""
    metered = MeteredObjectStore(raw, runtime.telemetry, runtime.clock)
    return RetryingObjectStore(
        LimitedObjectStore(metered, telemetry=runtime.telemetry),
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        settings=retry,
    )


async def open_raw_store(url: str, *, runtime: Runtime, environment: Mapping[str, str]) -> ObjectStore:
    """The same without metering, limits and retries: for probes, which want to see every answer as it comes.

    Raises:
        ValueError, ObjectStoreError: as `open_object_store`.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return S3ObjectStore(parse_s3_location(url, environment))
    if scheme == "file":
        return await DirectoryObjectStore.open(runtime.disk, _directory(url))
    raise ValueError(f"object store URL {url!r}: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL is expected")


async def open_multipart_store(
    url: str,
    *,
    runtime: Runtime,
    environment: Mapping[str, str],
    store: ObjectStore,
    retry: RetrySettings | None = None,
) -> MultipartStore:
    """Open the same place for objects in parts; for processes that compact or collect garbage.

    Args:
        url: as `open_object_store` has it.
        runtime: clock, randomness, disk and telemetry of this process.
        environment: where the usual AWS_* variables are read from.
        store: the store of whole objects that was opened there; it tells whether a completion whose answer was lost was applied.
        retry: bounds of the repetitions.

    Raises:
        ValueError, ObjectStoreError: as `open_object_store`.
    """
    raw = await open_raw_multipart_store(url, runtime=runtime, environment=environment)
    return wrap_multipart_store(raw, store, runtime=runtime, retry=retry)


def wrap_multipart_store(
    raw: MultipartStore, store: ObjectStore, *, runtime: Runtime, retry: RetrySettings | None = None
) -> MultipartStore:
    """Put metering, limits and retries around a raw store of parts."""
    return RetryingMultipartStore(
        LimitedMultipartStore(MeteredMultipartStore(raw, runtime.telemetry, runtime.clock)),
        store=store,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        settings=retry,
    )


async def open_raw_multipart_store(
    url: str, *, runtime: Runtime, environment: Mapping[str, str]
) -> MultipartStore:
    """The same without metering, limits and retries.

    Raises:
        ValueError, ObjectStoreError: as `open_object_store`.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        # Imported here: botocore costs half a second and 20 MiB, which brokers and controllers do without.
        from s3stream.stores.botocore_client import BotocoreBucket
        from s3stream.stores.botocore_multipart import BotocoreMultipartStore

        return BotocoreMultipartStore(BotocoreBucket(parse_s3_location(url, environment)))
    if scheme == "file":
        return await DirectoryMultipartStore.open(
            runtime.disk, _directory(url), clock=runtime.clock, randomness=runtime.randomness
        )
    raise ValueError(f"object store URL {url!r}: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL is expected")


def _directory(url: str) -> PurePosixPath:
    # Taken literally: a path may hold '%', '?' and '#', and whoever writes file://DIR does not encode DIR.
    path = PurePosixPath(url.removeprefix("file://"))
    if not path.is_absolute() or path == PurePosixPath("/") or ".." in path.parts:
        raise ValueError(f"object store URL {url!r}: file:///ABSOLUTE/DIR is expected (three slashes)")
    return path
