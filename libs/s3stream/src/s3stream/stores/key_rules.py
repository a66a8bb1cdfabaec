"""Which keys a store takes: the common ground of S3 keys, obstore paths and file names."""

from __future__ import annotations

import re
from typing import Final

KEY_BYTES_MAX: Final = 900
_SEGMENT: Final = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._=-]{1,200}"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


def check_key(key: str) -> str:
    """The key itself, if every store takes it.

    Raises:
        ValueError: it is not segments of `A-Za-z0-9._=-` joined by `/`, or it is too long, or a segment is `.` or `..`.
    """
    if len(key) > KEY_BYTES_MAX or _KEY.fullmatch(key) is None:
        raise ValueError(
            f"object store key {key[:100]!r}: segments of A-Z a-z 0-9 . _ = - joined by '/' are expected,"
            f" {KEY_BYTES_MAX} characters at most"
        )
    return key
