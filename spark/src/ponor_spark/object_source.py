"""Blocking ranged reads of objects from a bucket or a directory, one attempt per call.

No event loop is needed: each task has its own thread, which waits until its bytes arrive.
`object_reading.py` calls it from several threads, retries transient errors, and verifies the data.
Credentials come from the executor's environment (AWS_* variables, web identity, instance role: obstore's
chain). The URL contains none, because URLs travel in plans and appear in logs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import obstore
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
    check_key,
)
from s3stream.stores.s3 import connect
from s3stream.stores.s3_errors import OBSTORE_ERRORS, as_store_error
from s3stream.stores.s3_location import parse_s3_location


class ObjectSource(Protocol):
    """Ranged reads of objects. Thread-safe."""

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        """Return the bytes [position, position + size_bytes) of an object, fewer at its end.

        Raises:
            ObjectNotFoundError: the object does not exist.
            ObjectStoreRefusedError: credentials or configuration are wrong.
            ObjectStoreUnavailableError: a transient failure.
        """
        ...


class BucketSource:
    """`ObjectSource` of an S3 bucket or a prefix in it."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        location = parse_s3_location(url, environment)
        self._name: Final = str(location)
        self._store: Final = connect(location)

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        try:
            found = obstore.get_range(self._store, check_key(key), start=position, length=size_bytes)
        except OBSTORE_ERRORS as error:
            raise as_store_error(self._name, key, error) from error
        return memoryview(found)


class DirectorySource:
    """`ObjectSource` of a directory store (s3stream/stores/directory.py) that every executor can access."""

    def __init__(self, directory: Path) -> None:
        self._objects: Final = directory / "objects"

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        path = self._objects / (check_key(key) + ".object")
        try:
            with path.open("rb", buffering=0) as file:
                return _read_fully(file.fileno(), position, size_bytes)
        except FileNotFoundError as error:
            if not self._objects.is_dir():
                raise ObjectStoreRefusedError(
                    f"{self._objects}: no such directory; it must exist under this path at the driver"
                    " and at all executors"
                ) from error
            raise ObjectNotFoundError(f"{path}: no such object") from error
        except PermissionError as error:
            raise ObjectStoreRefusedError(
                f"{path}: {error.strerror}; check the permissions of the executors"
            ) from error
        except OSError as error:
            raise ObjectStoreUnavailableError(f"{path}: {error.strerror}") from error


def open_object_source(url: str, environment: Mapping[str, str] | None = None) -> ObjectSource:
    """Open `file:///DIR` or `s3://BUCKET/PREFIX?endpoint=URL` without connecting.

    Raises:
        ValueError: the URL is invalid or names an unknown kind of store.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return BucketSource(url, os.environ if environment is None else environment)
    if scheme == "file":
        return DirectorySource(Path(url.removeprefix("file://")))
    raise ValueError(f"object store URL {url!r}: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL is expected")


def _read_fully(descriptor: int, position: int, size_bytes: int) -> bytes:
    """Read a range; fewer bytes at the end of the file.

    Usually one read returns all bytes, and the join copies nothing. A signal may interrupt a read.
    """
    parts: list[bytes] = []
    while size_bytes and (data := os.pread(descriptor, size_bytes, position)):
        parts.append(data)
        position += len(data)
        size_bytes -= len(data)
    return b"".join(parts)
