"""A member of a streams group: what it reported about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

MEMBER_BYTES: Final = 2_000
"""Memory of a member without its texts and tasks, rounded up."""
_TAG_BYTES: Final = 200
_WIDE_CHARACTER_BYTES: Final = 4


class Endpoint(NamedTuple):
    """Where an instance of the application answers interactive queries."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """A member, as it is stored: one thread of an instance.

    Attributes:
        process_id: identifies the instance, whose members share its state directory.
        tags: the instance's client tags, in the order of the request.
        rebalance_timeout_ms: longest time for a revocation.
    """

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Memory of the member without its tasks."""
        texts = [self.member_id, self.rack_id or "", self.client_id, self.client_host, self.process_id]
        texts += [text for tag in self.tags for text in tag]
        if self.endpoint is not None:
            texts.append(self.endpoint.host)
        return MEMBER_BYTES + _TAG_BYTES * len(self.tags) + _WIDE_CHARACTER_BYTES * sum(map(len, texts))
