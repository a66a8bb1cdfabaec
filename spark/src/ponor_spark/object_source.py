"""Where an executor gets bytes of objects: a bucket or a directory, blocking, one attempt a call.

No event loop: a task has a thread of its own and nothing to do until its bytes are there. `object_reading.py` asks from several threads at a
time, repeats what may pass, and proves what came. Credentials are those of the executor's environment (AWS_* variables, web identity,
instance role: obstore's chain); the URL has none, because URLs travel in plans and stand in logs.
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
)
from s3stream.stores.key_rules import check_key
from s3stream.stores.s3 import connect
from s3stream.stores.s3_errors import OBSTORE_ERRORS, as_store_error
from s3stream.stores.s3_location import parse_s3_location


class ObjectSource(Protocol):
    """Ranged reads of objects, from any thread."""

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        """The bytes [position, position + size_bytes) of an object, fewer where it ends.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectStoreRefusedError: credentials or configuration are wrong.
            ObjectStoreUnavailableError: may pass.
        """
        ...


class BucketSource:
    """`ObjectSource` of an S3 bucket, or of a prefix of one."""

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
    """`ObjectSource` of a directory store (s3stream/stores/directory.py) that every executor can see."""

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
                    f"{self._objects}: no such directory; it has to be one that driver and executors see under this name"
                ) from error
            raise ObjectNotFoundError(f"{path}: no such object") from error
        except PermissionError as error:
            raise ObjectStoreRefusedError(
                f"{path}: {error.strerror}; check the rights of the executors"
            ) from error
        except OSError as error:
            raise ObjectStoreUnavailableError(f"{path}: {error.strerror}") from error


def open_object_source(url: str, environment: Mapping[str, str] | None = None) -> ObjectSource:
    """Open `file:///DIR` or `s3://BUCKET/PREFIX?endpoint=URL`; nothing is contacted.

    Raises:
        ValueError: the URL names no store that there is, or cannot be read.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return BucketSource(url, os.environ if environment is None else environment)
    if scheme == "file":
        return DirectorySource(Path(url.removeprefix("file://")))
    raise ValueError(f"object store URL {url!r}: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL is expected")


def _read_fully(descriptor: int, position: int, size_bytes: int) -> bytes:
    """Fewer bytes where the file ends. One read gives all of them, unless a signal comes: then the join is free."""
    parts: list[bytes] = []
    while size_bytes and (data := os.pread(descriptor, size_bytes, position)):
        parts.append(data)
        position += len(data)
        size_bytes -= len(data)
    return b"".join(parts)
