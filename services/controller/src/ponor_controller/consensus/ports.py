"""The seam between deciding what to write and agreeing that it is written.

What lives here: the protocol that a single voter fulfils today and Raft fulfils later, and the value that passes through it. Nothing in
here knows what a record means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ponor.metadata.v1 import records_pb2


class NotLeaderError(Exception):
    """This voter does not lead: it may propose nothing."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One batch of the log. `data` is its one encoding: these bytes are stored, digested and sent, never made a second time."""

    index: int
    batch: records_pb2.RecordBatch
    data: bytes


CommitListener: TypeAlias = Callable[[Sequence[LogEntry]], None]
"""Called with entries as soon as they are durable at a majority: each once, in the order of indices, those of one sync together."""


class Consensus(Protocol):
    """Agrees with the other voters on one order of entries."""

    @property
    def is_leader(self) -> bool:
        """Whether this voter may propose."""
        ...

    @property
    def term(self) -> int:
        """The present term; every entry carries the one it was proposed in."""
        ...

    def propose(self, entry: LogEntry) -> None:
        """Take the next entry of the log. It is committed when the listeners hear of it, and not before.

        Many may be in flight; the caller bounds how many.

        Raises:
            NotLeaderError: another voter leads.
        """
        ...

    def on_commit(self, listener: CommitListener) -> None:
        """Hear of every committed entry from now on."""
        ...
