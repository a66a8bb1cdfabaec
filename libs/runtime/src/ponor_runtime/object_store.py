"""The object-store port: immutable objects under keys.

Implementations live in `s3stream.stores` (a directory, S3) and in the simulator; one conformance suite runs against all of them
(libs/s3stream/tests/object_store_conformance.py). Wrappers (retry, metering, limits) implement the same protocol and compose.

Not a file system: no append, no rename, no directories. Keys are `/`-separated ASCII. Data puts are create-only, because an object id
is never used twice: whoever finds the key taken either repeats its own put or is a zombie.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ponor_runtime.disk import Buffer


class ObjectStoreError(Exception):
    """Root of what a store answers; `retriable` tells whether the same call may succeed later."""

    retriable = False


class ObjectNotFoundError(ObjectStoreError):
    """No object has this key."""


class ObjectAlreadyExistsError(ObjectStoreError):
    """A create-only put found the key taken."""


class ObjectStoreRefusedError(ObjectStoreError):
    """Credentials, bucket or configuration are wrong; no retry will help."""


class ObjectStoreUnavailableError(ObjectStoreError):
    """Overload, timeout, connection loss. The call may or may not have been applied."""

    retriable = True


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """A bucket, or a prefix of one."""

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Create an object from the buffers, one after the other; durable when it returns. Large ones go by multipart.

        Raises:
            ObjectAlreadyExistsError: the key is taken.
            ObjectStoreError: see the classes.
        """
        ...

    async def get(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start` on, or fewer at the end of the object.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectStoreError: see the classes.
        """
        ...

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """The last `length` bytes (fewer if the object is smaller) and the object's size.

        Raises:
            ObjectNotFoundError: no such object.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; absent ones count as deleted."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in any order."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
