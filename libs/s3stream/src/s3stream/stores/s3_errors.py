"""Translates failures of S3 requests into errors of the object-store port.

obstore distinguishes most failures only by its message, which quotes the HTTP status and S3's error document.
"""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreRefusedError,
    ObjectStoreSlowDownError,
    ObjectStoreUnavailableError,
)

OBSTORE_ERRORS: Final = (BaseError, FileNotFoundError, PermissionError, TimeoutError, ConnectionError)
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
PASSING_STATUS: Final = frozenset({408, 425, 429})
_RANGE_NOT_SATISFIABLE: Final = 416
SLOW_DOWN_STATUS: Final = frozenset({429, 503})
SLOW_DOWN_CODES: Final = frozenset(
    {"SlowDown", "ServiceUnavailable", "TooManyRequests", "RequestLimitExceeded"}
)


def is_range_beyond_end(error: Exception) -> bool:
    """Whether a ranged GET requested only bytes after the end of the object."""
    return _status_of(str(error)) == _RANGE_NOT_SATISFIABLE


def as_store_error(location: str, key: str, error: Exception) -> ObjectStoreError:
    """Return the port's error for one of `OBSTORE_ERRORS`, with a message that names object, cause
    and remedy.
    """
    text = str(error)
    code = _CODE.search(text)
    s3_code = code[1] if code is not None else ""
    status = _status_of(text)
    summary = f"{location}: {key}: {_first_lines(text)}"
    if s3_code == "NoSuchBucket":
        return ObjectStoreRefusedError(f"{summary}; create the bucket or correct its name")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(f"{location}: {key}: no such object")
    if isinstance(error, AlreadyExistsError):
        if s3_code in {"ConditionalRequestConflict", "OperationAborted"}:
            # 409: another conditional put of this key was in flight. S3 asks for a retry; only 412
            # means that the key exists.
            return ObjectStoreUnavailableError(f"{summary}; repeat the call")
        return ObjectAlreadyExistsError(f"{location}: {key}: the key is taken")
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError, PermissionError)) or status in {
        401,
        403,
    }:
        return ObjectStoreRefusedError(
            f"{summary}; check the credentials, their rights and this machine's clock"
        )
    if status == 501 or s3_code == "NotImplemented":
        return ObjectStoreRefusedError(f"{summary}; the store lacks If-None-Match puts, which Ponor needs")
    if "builder error" in text:
        return ObjectStoreRefusedError(f"{summary}; check the endpoint (http needs allow_http=true)")
    if status in SLOW_DOWN_STATUS or s3_code in SLOW_DOWN_CODES:
        return ObjectStoreSlowDownError(summary)
    if status is not None and 400 <= status < 500 and status not in PASSING_STATUS:
        return ObjectStoreRefusedError(f"{summary}; the store refuses this request")
    return ObjectStoreUnavailableError(summary)


def _status_of(text: str) -> int | None:
    match = _STATUS.search(text)
    return int(match[1]) if match is not None else None


def _first_lines(text: str) -> str:
    return " ".join(text.partition("\n\nDebug source:")[0].split())
