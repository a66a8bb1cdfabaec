"""The replicated state: registers, and a chain of digests that differs as soon as any applied entry differs.

What lives here: apply, and a snapshot's body and back. Commands are small values in bytes; entries without a command (openings, membership changes) change the
chain alone.
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
        """For an entry."""
        return f"{self.key}={self.value}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Put:
        """The other way."""
        key, value = data.split(b"=")
        return cls(int(key), int(value))


@dataclass(slots=True)
class Registers:
    """The state at `index`."""

    index: int = 0
    digest: bytes = bytes(DIGEST_BYTES)
    values: dict[int, int] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """The next entry."""
        assert entry.index == self.index + 1, f"entry {entry.index} applied after {self.index}"
        self.index = entry.index
        self.digest = hashlib.blake2b(
            b"%d %d " % (entry.index, entry.term) + entry.data, key=self.digest, digest_size=DIGEST_BYTES
        ).digest()
        if entry.data and entry.membership is None:
            command = Put.decode(entry.data)
            self.values[command.key] = command.value

    def encode(self) -> bytes:
        """A snapshot's body."""
        content: dict[str, Any] = {
            "index": self.index,
            "digest": self.digest.hex(),
            "values": sorted(self.values.items()),
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, body: bytes) -> Registers:
        """From a snapshot's body."""
        content = json.loads(body)
        return cls(content["index"], bytes.fromhex(content["digest"]), dict(content["values"]))
