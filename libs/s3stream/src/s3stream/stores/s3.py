"""An object store in an S3 bucket, by obstore.

Every call here is one attempt: obstore's own retries are off, so that `metered.py` counts what is billed and
`retrying.py` decides. Payloads are not signed (`x-amz-content-sha256: UNSIGNED-PAYLOAD`, a quarter of the CPU
of a signed 8 MiB put); objects carry their own checksums.

Measured with obstore 0.12.1 against SeaweedFS 4.48 (tests/test_object_stores_s3.py verifies it):
- a single put in mode "create" sends `If-None-Match: *`, the server answers 412 when the key is taken;
- in mode "create" obstore never uses multipart uploads, regardless of `use_multipart`, and its multipart
  uploads have no condition: they overwrite.
Puts above `MULTIPART_BYTES_MIN` therefore send a HEAD first. Two writers of one key could both find the key
free. But an object id has one writer, so a put can race only with an earlier attempt of the same writer,
which writes the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.store import S3Store
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectInfo, ObjectNotFoundError, check_key

from s3stream.stores.buffers import joined, total_bytes
from s3stream.stores.policy import DELETE_BATCH_KEYS, LIST_PAGE_KEYS
from s3stream.stores.reads_in_place import put_in_place
from s3stream.stores.s3_errors import OBSTORE_ERRORS, as_store_error, is_range_beyond_end
from s3stream.stores.s3_location import S3Location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config  # only in its stubs

    from s3stream.stores.s3_in_place import InPlaceReader

logger = logging.getLogger("ponor.store")
MULTIPART_BYTES_MIN: Final = 32 * 1024 * 1024
PART_BYTES: Final = 16 * 1024 * 1024
PARTS_IN_FLIGHT_MAX: Final = 4
REQUEST_TIMEOUT: Final = timedelta(seconds=30)
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_RPC_METHODS: Final = {"put": "S3/PutObject", "get": "S3/GetObject"}


class S3ObjectStore:
    """`ObjectStore` in a bucket, or under a prefix of one. Listings are in the server's order."""

    def __init__(self, location: S3Location) -> None:
        self._location: Final = str(location)
        self._bucket: Final = location.bucket
        self._key_prefix: Final = f"{location.prefix}/" if location.prefix else ""
        self._store = connect(location)
        self._in_place: InPlaceReader | None = None
        self._reads_in_place = True

    def requests_of(self, operation: str, size_bytes: int, *, taken: bool) -> Mapping[str, int]:
        """Return the requests of one operation: a large put needs several (`metered.CountsRequests`)."""
        if operation != "put" or size_bytes <= MULTIPART_BYTES_MIN:
            return {operation: 1}
        if taken:
            return {"head": 1}
        return {
            "head": 1,
            "multipart_create": 1,
            "multipart_part": -(-size_bytes // PART_BYTES),
            "multipart_complete": 1,
        }

    def call_attributes(self, operation: str, key: str) -> Mapping[str, str]:
        """Return OpenTelemetry's attributes of a put or a get (`metered.DescribesCalls`)."""
        return {
            "rpc.system.name": "aws-api",
            "rpc.method": _RPC_METHODS[operation],
            "aws.s3.bucket": self._bucket,
            "aws.s3.key": self._key_prefix + key,
        }

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        check_key(key)
        if total_bytes(buffers) > MULTIPART_BYTES_MIN:
            await self._put_multipart(key, buffers)
            return
        with self._as_store_error(key):
            await obstore.put_async(self._store, key, [*joined(buffers)], mode="create", use_multipart=False)

    async def get(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        if length <= 0:
            return b""
        with self._as_store_error(key):
            try:
                return bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
            except OBSTORE_ERRORS as error:
                if is_range_beyond_end(error):
                    return b""
                raise

    @property
    def reads_in_place(self) -> bool:
        """`ReadsInPlace`: True until a read in place was refused and `get` of the same bytes succeeded."""
        return self._reads_in_place

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        """`ReadsInPlace.get_into`."""
        check_key(key)
        if not total_bytes(places):
            return 0
        if not self._reads_in_place:
            return put_in_place(await self.get(key, start, total_bytes(places)), places)
        # Imported here, because an HTTP client with TLS is needed only by processes that move much data.
        from s3stream.stores.s3_in_place import InPlaceReader, InPlaceUnusableError

        if self._in_place is None:
            self._in_place = InPlaceReader(self._store, self._location)
        try:
            return await self._in_place.read(key, start, places)
        except InPlaceUnusableError as error:
            data = await self.get(key, start, total_bytes(places))
            self._end_in_place(str(error))
            return put_in_place(data, places)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        check_key(key)
        with self._as_store_error(key):
            try:
                result = await obstore.get_async(
                    self._store, key, options={"range": {"suffix": max(length, 1)}}
                )
                return bytes(await result.bytes_async()), result.meta["size"]
            except OBSTORE_ERRORS as error:
                if is_range_beyond_end(error):  # S3 rejects a suffix read of an empty object
                    return b"", 0
                raise

    async def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), DELETE_BATCH_KEYS):
            batch = [check_key(key) for key in keys[first : first + DELETE_BATCH_KEYS]]
            with self._as_store_error(f"{batch[0]} and {len(batch) - 1} more"):
                await obstore.delete_async(self._store, batch)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        # obstore matches whole segments only: list up to the last '/' and filter what follows it.
        segments = prefix.rpartition("/")[0] or None
        with self._as_store_error(prefix):
            async for page in obstore.list(self._store, segments, chunk_size=LIST_PAGE_KEYS):
                for meta in page:
                    if meta["path"].startswith(prefix):
                        modified_at_ms = int(meta["last_modified"].timestamp() * 1000)
                        yield ObjectInfo(meta["path"], meta["size"], modified_at_ms)

    async def close(self) -> None:
        """Close threads and connections of reads in place; obstore closes its own when the store is
        collected.
        """
        if self._in_place is not None:
            self._in_place.close()
            self._in_place = None

    def _end_in_place(self, reason: str) -> None:
        """Disable reads in place after `get` succeeded where a read in place was refused."""
        if self._reads_in_place:
            logger.warning("%s: large reads copy their data from now on: %s", self._location, reason)
            self._reads_in_place = False

    async def _put_multipart(self, key: str, buffers: Sequence[Buffer]) -> None:
        if await self._exists(key):
            raise ObjectAlreadyExistsError(f"{self._location}: {key}: the key is taken")
        with self._as_store_error(key):
            await obstore.put_async(
                self._store,
                key,
                joined(buffers),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_IN_FLIGHT_MAX,
            )

    async def _exists(self, key: str) -> bool:
        try:
            with self._as_store_error(key):
                await obstore.head_async(self._store, key)
        except ObjectNotFoundError:
            return False
        return True

    @contextmanager
    def _as_store_error(self, key: str) -> Iterator[None]:
        try:
            yield
        except OBSTORE_ERRORS as error:
            raise as_store_error(self._location, key, error) from error


def connect(location: S3Location) -> S3Store:
    """Create a client of a bucket with one attempt per call, also for readers without an event
    loop. Contacts no server.
    """
    config: S3Config = {
        "region": location.region,
        "unsigned_payload": location.unsigned_payload,
        "virtual_hosted_style_request": location.virtual_hosted,
        "conditional_put": "etag",
    }
    if location.endpoint:
        # obstore prefers the second name, which the environment may also set, but the location
        # must take precedence.
        config["endpoint"] = location.endpoint
        config["aws_endpoint_url_s3"] = location.endpoint
    if location.access_key_id:
        config["access_key_id"] = location.access_key_id
        config["secret_access_key"] = location.secret_access_key
    if location.session_token:
        config["session_token"] = location.session_token
    client: ClientConfig = {
        "allow_http": location.allow_http,
        "timeout": REQUEST_TIMEOUT,
        "connect_timeout": CONNECT_TIMEOUT,
    }
    return S3Store(
        location.bucket,
        prefix=location.prefix or None,
        config=config,
        client_options=client,
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )
