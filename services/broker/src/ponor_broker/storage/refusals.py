"""From the controller's refusals to the storage's errors.

What lives here: one table. A code that means the same to every caller is translated here; what is special to one operation stands with it.
"""

from __future__ import annotations

from typing import Final

from ponor.common.v1 import error_pb2
from ponor_rpc.errors import OperationError
from s3stream.errors import (
    S3StreamError,
    StreamClosedError,
    StreamFencedError,
    StreamNotClosedError,
    StreamNotFoundError,
    WalNotHeldError,
)

_ERRORS: Final[dict[int, type[S3StreamError]]] = {
    error_pb2.ERROR_CODE_STREAM_NOT_FOUND: StreamNotFoundError,
    error_pb2.ERROR_CODE_TOPIC_NOT_FOUND: StreamNotFoundError,  # its streams were deleted with it
    error_pb2.ERROR_CODE_STREAM_FENCED: StreamFencedError,
    error_pb2.ERROR_CODE_STREAM_NOT_OPENED: StreamClosedError,
    error_pb2.ERROR_CODE_STREAM_NOT_CLOSED: StreamNotClosedError,
    error_pb2.ERROR_CODE_WAL_NOT_HELD: WalNotHeldError,
}


def storage_error_of(error: OperationError) -> S3StreamError:
    """The storage's error for a refusal."""
    return _ERRORS.get(error.code, S3StreamError)(str(error))
