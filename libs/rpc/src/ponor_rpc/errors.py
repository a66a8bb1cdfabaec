"""The error model: one exception for every refused operation, and its conversion to and from
`ponor.common.v1.Error`.

proto/ponor/common/v1/error.proto defines the meaning of each code.
"""

from __future__ import annotations

from typing import Final

from ponor.common.v1.error_pb2 import (
    ERROR_CODE_CONTROLLER_BEHIND,
    ERROR_CODE_NODE_EPOCH_STALE,
    ERROR_CODE_NODE_FENCED,
    ERROR_CODE_NOT_LEADER,
    ERROR_CODE_OVERLOADED,
    Error,
    ErrorCode,
)

RETRY_SAME_OPERATION: Final = (ERROR_CODE_OVERLOADED, ERROR_CODE_NOT_LEADER, ERROR_CODE_CONTROLLER_BEHIND)
"""Codes after which the client sends the same request (with the same operation id) again: later, or to
another controller."""

NODE_MUST_STOP: Final = (ERROR_CODE_NODE_EPOCH_STALE, ERROR_CODE_NODE_FENCED)
"""Codes after which the process has lost its rights and must stop."""


class OperationError(Exception):
    """An operation was refused and changed nothing.

    Attributes:
        code: a value of `ponor.common.v1.ErrorCode`.
        message: one line that names the affected resource and the remedy.
        leader_address: with NOT_LEADER, HOST:PORT of the leader if it is known; otherwise empty.
    """

    def __init__(self, code: ErrorCode.ValueType, message: str, *, leader_address: str = "") -> None:
        super().__init__(f"{error_name(code)}: {message}")
        self.code = code
        self.message = message
        self.leader_address = leader_address

    @classmethod
    def from_proto(cls, error: Error) -> OperationError:
        """Convert a received error to an exception."""
        return cls(error.code, error.message, leader_address=error.leader_address)

    def to_proto(self) -> Error:
        """Convert to the wire message."""
        return Error(code=self.code, message=self.message, leader_address=self.leader_address)


def error_name(code: ErrorCode.ValueType) -> str:
    """Return the code's name without its prefix, such as "STREAM_FENCED"; the number for a code of a newer
    peer.
    """
    try:
        return ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    except ValueError:
        return f"ERROR_{int(code)}"
