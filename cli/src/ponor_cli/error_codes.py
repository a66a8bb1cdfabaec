"""Kafka's error codes as a command names them; a code of a newer broker keeps its number."""

from __future__ import annotations

from ponor_kafka.errors import ErrorCode


def error_of(code: int) -> ErrorCode:
    """The code as a member; one that is not known here counts as UNKNOWN_SERVER_ERROR, which is not retriable."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_name(code: int) -> str:
    """The code's name, or its number."""
    error = error_of(code)
    return error.name if error == code else str(code)
