"""Object keys: `hash-prefix / origin namespace / object id`.

The hash prefix spreads objects over a store's key space, because stores split load by key range and
consecutive ids would all be in one range. In a directory store, it spreads files over directories.
The namespace is that of the cluster that created the object, so a key stays valid when another
cluster takes over the object's row. Every object has exactly one valid key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from ponor_runtime.identity import ObjectId

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}")
_KEY: Final = re.compile(r"([0-9a-f]{2})/([A-Za-z0-9_-][A-Za-z0-9._-]{0,62})/(0|[1-9][0-9]{0,18})")
HASH_PREFIXES: Final = 256
_OBJECT_ID_MAX: Final = (1 << 63) - 1


def object_key(namespace: str, object_id: ObjectId) -> str:
    """Return the key of an object.

    Raises:
        ValueError: the namespace is not 1 to 63 characters of `A-Za-z0-9._-` (no leading dot), or
            the id does not fit into 63 bits.
    """
    if _NAMESPACE.fullmatch(namespace) is None:
        raise ValueError(
            f"namespace {namespace!r}: 1 to 63 characters of A-Z a-z 0-9 . _ - with no leading dot are"
            " allowed"
        )
    if not 0 <= object_id <= _OBJECT_ID_MAX:
        raise ValueError(f"object id {object_id} is not within 0..{_OBJECT_ID_MAX}")
    return f"{_hash_prefix(object_id)}/{namespace}/{object_id}"


def parse_object_key(key: str) -> tuple[str, ObjectId]:
    """Return the origin namespace and object id of a key.

    Raises:
        ValueError: this is not the key of an object, or its hash prefix does not match its id.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} is not an object key: HH/NAMESPACE/ID is expected")
    object_id = int(match[3])
    if object_id > _OBJECT_ID_MAX:
        raise ValueError(f"object key {key!r}: id {object_id} exceeds 63 bits")
    if match[1] != _hash_prefix(object_id):
        raise ValueError(f"object key {key!r}: id {object_id} has the hash prefix {_hash_prefix(object_id)}")
    return match[2], ObjectId(object_id)


def key_prefixes(namespace: str) -> Iterator[str]:
    """Return the prefixes of all object keys of a namespace, in ascending order. Only objects of
    this namespace belong under them.

    Raises:
        ValueError: as `object_key`.
    """
    beginning = object_key(namespace, ObjectId(0)).rpartition("/")[0].partition("/")[2]
    return (f"{number:02x}/{beginning}/" for number in range(HASH_PREFIXES))


def _hash_prefix(object_id: int) -> str:
    """Two hexadecimal digits: stores need fewer than 256 key ranges, and a directory store keeps only 256
    directories per namespace.
    """
    return blake2b(object_id.to_bytes(8, "big"), digest_size=1).hexdigest()
