"""Translation of botocore's exceptions into errors of the object-store port, with the texts and classes of
`s3_errors.py`.
"""

from __future__ import annotations

from typing import Final

from aiohttp import ClientError as ConnectionFailure
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from botocore.exceptions import ConnectionError as EndpointFailure
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreRefusedError,
    ObjectStoreSlowDownError,
    ObjectStoreUnavailableError,
)

from s3stream.stores.s3_errors import PASSING_STATUS, SLOW_DOWN_CODES, SLOW_DOWN_STATUS

BOTOCORE_ERRORS: Final = (BotoCoreError, ClientError, ConnectionFailure, TimeoutError, ConnectionError)
"""A response that is truncated while its body is read raises aiohttp's own error."""

_CONFLICT: Final = 409
_PRECONDITION_FAILED: Final = 412
_NOT_IMPLEMENTED: Final = 501


def is_not_implemented(error: Exception) -> bool:
    """Whether the store does not support the request, for example a condition."""
    status, code = _answer(error)
    return status == _NOT_IMPLEMENTED or code == "NotImplemented"


def as_store_error(location: str, key: str, error: Exception) -> ObjectStoreError:
    """Return the port's error for one of `BOTOCORE_ERRORS`, with a message that names object, cause
    and remedy.
    """
    status, code = _answer(error)
    summary = f"{location}: {key}: {error}"
    if isinstance(error, ClientError):
        return _of_answer(f"{location}: {key}", summary, status, code)
    if isinstance(
        error, (HTTPClientError, EndpointFailure, ConnectionFailure, TimeoutError, ConnectionError)
    ):
        return ObjectStoreUnavailableError(summary)
    if isinstance(error, NoCredentialsError):
        return ObjectStoreRefusedError(
            f"{summary}; give credentials, for example by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return ObjectStoreRefusedError(f"{summary}; check the URL of the store and its parameters")


def _of_answer(thing: str, summary: str, status: int, code: str) -> ObjectStoreError:
    """Interpret the response's status and error code."""
    if code == "NoSuchBucket":
        return ObjectStoreRefusedError(f"{summary}; create the bucket or correct its name")
    if code == "NoSuchUpload":
        return MultipartNotFoundError(f"{thing}: no such multipart upload")
    if status == 404:
        return ObjectNotFoundError(f"{thing}: no such object")
    if (
        status == _CONFLICT
    ):  # another conditional call on this key was in flight; only 412 means that the key exists
        return ObjectStoreUnavailableError(f"{summary}; repeat the call")
    if status == _PRECONDITION_FAILED:
        return ObjectAlreadyExistsError(f"{thing}: the key is taken")
    if status in {401, 403}:
        return ObjectStoreRefusedError(
            f"{summary}; check the credentials, their rights and this machine's clock"
        )
    if status in SLOW_DOWN_STATUS or code in SLOW_DOWN_CODES:
        return ObjectStoreSlowDownError(summary)
    if status == _NOT_IMPLEMENTED or (400 <= status < 500 and status not in PASSING_STATUS):
        return ObjectStoreRefusedError(f"{summary}; the store refuses this request")
    return ObjectStoreUnavailableError(summary)


def _answer(error: Exception) -> tuple[int, str]:
    """Return HTTP status and S3 error code; (0, "") without a response."""
    if not isinstance(error, ClientError):
        return 0, ""
    response = error.response
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(response.get("Error", {}).get("Code", ""))
