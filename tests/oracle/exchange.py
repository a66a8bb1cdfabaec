"""One request with its answer, and a whole story, as stored in tests/oracle/recordings.

A request is stored as the bytes sent to Kafka and as a digest of its canonical form: when a story
changes, its recording no longer matches.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

RECORDINGS: Final = Path(__file__).parent / "recordings"
HEX_BYTES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Exchange:
    """`answer` is one of {"body": fields}, {"closed": true}, {"silent": true}, {"none": true} (not
    requested), {"undecodable": hex}.
    """

    note: str
    api: str
    version: int
    request: bytes
    request_digest: str
    answer: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Encode for a recording."""
        return {
            "note": self.note,
            "api": self.api,
            "version": self.version,
            "request": _pack(self.request),
            "request_digest": self.request_digest,
            "answer": self.answer,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Exchange:
        """Decode from a recording."""
        return cls(
            row["note"],
            row["api"],
            row["version"],
            _unpack(row["request"]),
            row["request_digest"],
            row["answer"],
        )


@dataclass(slots=True)
class Told:
    """The exchanges of one broker in a story; `broke_off` says why the story ended early."""

    story: str
    broker: str
    exchanges: list[Exchange] = field(default_factory=list)
    broke_off: str | None = None


def save(told: Told, story: str, title: str) -> None:
    """Write a recording, one exchange per line."""
    head = json.dumps({"story": story, "title": title, "broker": told.broker}, ensure_ascii=False)[:-1]
    rows = ",\n".join(json.dumps(exchange.to_json(), ensure_ascii=False) for exchange in told.exchanges)
    RECORDINGS.mkdir(exist_ok=True)
    path_of(story).write_text(f'{head}, "exchanges": [\n{rows}\n]}}\n')


def load(story: str) -> Told:
    """Read a recording. Raises FileNotFoundError if the story was never recorded."""
    content = json.loads(path_of(story).read_text())
    exchanges = [Exchange.from_json(row) for row in content["exchanges"]]
    return Told(story, content["broker"], exchanges)


def path_of(story: str) -> Path:
    """The path of a story's recording."""
    return RECORDINGS / f"{story}.json"


def _pack(data: bytes) -> dict[str, Any]:
    if len(data) <= HEX_BYTES_MAX:
        return {"hex": data.hex()}
    return {"size": len(data), "deflated": base64.b64encode(zlib.compress(data, 9)).decode()}


def _unpack(row: dict[str, Any]) -> bytes:
    return bytes.fromhex(row["hex"]) if "hex" in row else zlib.decompress(base64.b64decode(row["deflated"]))
