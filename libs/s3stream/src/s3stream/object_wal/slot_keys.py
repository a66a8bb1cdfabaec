"""Keys of slots: `hash-prefix / wal / origin namespace / node / epoch / sequence`.

Epoch and sequence are padded, so that keys sort as numbers. The key contains the epoch, so no put or delete
of an older process can affect a slot of a newer one (rule R1). A node has one hash prefix for all its epochs,
so a recoverer lists one prefix.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from ponor_runtime.identity import NodeEpoch, NodeId

from s3stream.ports import WalName

EPOCH_DIGITS: Final = 10
SEQUENCE_DIGITS: Final = 20
EPOCH_MAX: Final = 10**EPOCH_DIGITS - 1
SEQUENCE_MAX: Final = (1 << 63) - 1
_KEY: Final = re.compile(
    rf"([0-9a-f]{{2}})/wal/([A-Za-z0-9_-][A-Za-z0-9._-]{{0,62}})/(0|[1-9][0-9]{{0,9}})/([0-9]{{{EPOCH_DIGITS}}})/([0-9]{{{SEQUENCE_DIGITS}}})"
)


def node_prefix(namespace: str, node_id: NodeId) -> str:
    """Prefix of the keys of all logs of a node."""
    return f"{_hash_prefix(node_id)}/wal/{namespace}/{node_id}/"


def wal_prefix(name: WalName) -> str:
    """Prefix of the keys of all slots of a log."""
    assert 0 <= name.epoch <= EPOCH_MAX, name
    return f"{node_prefix(name.namespace, name.node_id)}{name.epoch:0{EPOCH_DIGITS}d}/"


def slot_key(name: WalName, sequence: int) -> str:
    """The key of a slot."""
    assert 0 <= sequence <= SEQUENCE_MAX, sequence
    return f"{wal_prefix(name)}{sequence:0{SEQUENCE_DIGITS}d}"


def parse_slot_key(key: str) -> tuple[WalName, int]:
    """Return the log and the sequence of a key.

    Raises:
        ValueError: this is not the key of a slot, or its hash prefix does not match its node.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(
            f"{key!r} is not the key of a slot: HH/wal/NAMESPACE/NODE/EPOCH/SEQUENCE is expected"
        )
    name = WalName(match[2], NodeId(int(match[3])), NodeEpoch(int(match[4])))
    sequence = int(match[5])
    if sequence > SEQUENCE_MAX or key != slot_key(name, sequence):
        raise ValueError(f"{key!r}: node {name.node_id} has the hash prefix {_hash_prefix(name.node_id)}")
    return name, sequence


def _hash_prefix(node_id: int) -> str:
    return blake2b(node_id.to_bytes(8, "big"), digest_size=1).hexdigest()
