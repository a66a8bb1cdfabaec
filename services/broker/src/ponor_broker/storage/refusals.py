"""Translation of the controller's error codes into the storage's errors, for codes that mean the
same in every operation.
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
    # its streams were deleted with the topic
    error_pb2.ERROR_CODE_TOPIC_NOT_FOUND: StreamNotFoundError,
    error_pb2.ERROR_CODE_STREAM_FENCED: StreamFencedError,
    error_pb2.ERROR_CODE_STREAM_NOT_OPENED: StreamClosedError,
    error_pb2.ERROR_CODE_STREAM_NOT_CLOSED: StreamNotClosedError,
    error_pb2.ERROR_CODE_WAL_NOT_HELD: WalNotHeldError,
}


def storage_error_of(error: OperationError) -> S3StreamError:
    """Return the storage error for a refused operation."""
    return _ERRORS.get(error.code, S3StreamError)(str(error))
