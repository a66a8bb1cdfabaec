"""The replicated state: registers, and a digest chain over all applied entries.

Entries without a command (a leader's first entry, membership changes) change only the digest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from ponor_raft.entry import Entry

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Put:
    """Write `value` to a register; values are unique in a run."""

    key: int
    value: int

    def encode(self) -> bytes:
        return f"{self.key}={self.value}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Put:
        key, value = data.split(b"=")
        return cls(int(key), int(value))


@dataclass(slots=True)
class Registers:
    """The state at `index`."""

    index: int = 0
    digest: bytes = bytes(DIGEST_BYTES)
    values: dict[int, int] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry."""
        assert entry.index == self.index + 1, f"entry {entry.index} applied after {self.index}"
        self.index = entry.index
        self.digest = hashlib.blake2b(
            b"%d %d " % (entry.index, entry.term) + entry.data, key=self.digest, digest_size=DIGEST_BYTES
        ).digest()
        if entry.data and entry.membership is None:
            command = Put.decode(entry.data)
            self.values[command.key] = command.value

    def encode(self) -> bytes:
        """The body of a snapshot."""
        content: dict[str, Any] = {
            "index": self.index,
            "digest": self.digest.hex(),
            "values": sorted(self.values.items()),
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, body: bytes) -> Registers:
        """The state of a snapshot's body."""
        content = json.loads(body)
        return cls(content["index"], bytes.fromhex(content["digest"]), dict(content["values"]))
