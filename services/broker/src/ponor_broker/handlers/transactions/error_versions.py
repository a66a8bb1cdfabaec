"""Translation of transaction errors for clients whose request version does not define them."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode

FENCED_FROM: Final = 2
"""First version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn with PRODUCER_FENCED."""
FENCED_FROM_OF_INIT: Final = 4


def error_of_version(error: ErrorCode, version: int, *, fenced_from: int = FENCED_FROM) -> ErrorCode:
    """Return the error for a request of this version (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
