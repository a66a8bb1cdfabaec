"""Which blocks are fetched together: those that lie side by side in one object, up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from s3stream.objects.block import memory_bytes_of
from s3stream.objects.format import BlockEntry

RUN_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks that one ranged GET brings."""

    entries: tuple[BlockEntry, ...]

    @property
    def position(self) -> int:
        """Where the run begins in its object."""
        return self.entries[0].position

    @property
    def size_bytes(self) -> int:
        """How much to get."""
        return self.entries[-1].position + self.entries[-1].size_bytes - self.position

    @property
    def fetch_memory_bytes(self) -> int:
        """What fetching it takes: its blocks, and their bytes a second time while they are cut out of one answer."""
        answer_bytes = self.size_bytes if len(self.entries) > 1 else 0
        return sum(map(memory_bytes_of, self.entries)) + answer_bytes


def adjacent_runs(entries: Sequence[BlockEntry], *, run_bytes_max: int = RUN_BYTES_MAX) -> list[BlockRun]:
    """Cut blocks of one object, in position order, into runs without holes; a larger block is a run of its own."""
    runs: list[BlockRun] = []
    run: list[BlockEntry] = []
    for entry in entries:
        if run:
            end = run[-1].position + run[-1].size_bytes
            if entry.position != end or end + entry.size_bytes - run[0].position > run_bytes_max:
                runs.append(BlockRun(tuple(run)))
                run = []
        run.append(entry)
    if run:
        runs.append(BlockRun(tuple(run)))
    return runs
