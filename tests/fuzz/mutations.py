"""Mutated valid encodings, as a hostile or broken peer could send them.

Decoders depend most on lengths, so most mutations change a length.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

HOSTILE_LENGTHS: Final = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff",
    b"\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x00",
    b"\x01",
)
INSERTED_BYTES_MAX: Final = 64
CHANGES_MAX: Final = 4


def mutate(seed: bytes, rng: random.Random) -> bytes:
    """One to four changes of a valid encoding."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, CHANGES_MAX)):
        rng.choice(_CHANGES)(data, rng)
    return bytes(data)


def _flip_bit(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _hostile_length(data: bytearray, rng: random.Random) -> None:
    where = rng.randrange(len(data) + 1)
    length = rng.choice(HOSTILE_LENGTHS)
    data[where : where + len(length)] = length


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(data: bytearray, rng: random.Random) -> None:
    where = rng.randrange(len(data) + 1)
    del data[where : where + rng.randint(1, INSERTED_BYTES_MAX)]


def _insert(data: bytearray, rng: random.Random) -> None:
    where = rng.randrange(len(data) + 1)
    data[where:where] = rng.randbytes(rng.randint(1, INSERTED_BYTES_MAX))


def _repeat(data: bytearray, rng: random.Random) -> None:
    where = rng.randrange(len(data) + 1)
    data[where:where] = data[where : where + INSERTED_BYTES_MAX]


_CHANGES: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    _flip_bit,
    _set_byte,
    _hostile_length,
    _hostile_length,
    _cut,
    _remove,
    _insert,
    _repeat,
)
