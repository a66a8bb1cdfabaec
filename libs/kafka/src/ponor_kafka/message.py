"""Base classes of generated messages and structs: equality and repr by field.

`repr` hides secrets, because requests may appear in messages of errors and in logs.

Instances have only slots. The generated constructors take every field in wire order with the protocol's
default.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

ZERO_UUID: Final = bytes(16)
"""Means "no topic id". This package represents Kafka's UUIDs as their 16 raw bytes."""
SECRET_FIELDS: Final = frozenset({"auth_bytes", "hmac", "salt", "salted_password"})
"""Names of fields that contain secrets: tokens of SASL, HMACs of delegation tokens, SCRAM credentials."""


class Struct:
    """A struct of the protocol. Lists and tuples compare by content."""

    __slots__: Sequence[str] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in type(self).__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self._shown(name)}" for name in type(self).__slots__)
        return f"{type(self).__name__}({fields})"

    def _shown(self, name: str) -> str:
        return "[hidden]" if name in SECRET_FIELDS else repr(getattr(self, name))


class Message(Struct):
    """A struct that is encoded on its own: a request, response, header or record body."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    VERSION_MIN: ClassVar[int] = 0
    VERSION_MAX: ClassVar[int] = 0
    FLEXIBLE_MIN: ClassVar[int] = 1 << 15


def _same(mine: object, theirs: object) -> bool:
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return mine == theirs
