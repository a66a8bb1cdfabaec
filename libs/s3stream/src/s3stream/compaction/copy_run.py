"""Execution of a stream object compaction: the store copies large parts; small parts are rewritten
one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor_runtime.disk import Buffer

from s3stream.compaction.copy_plan import CopiedPart, CopyPlan, Part, PlannedCopy, RewrittenPart
from s3stream.compaction.movement import BlockReader, PartUploads, all_of
from s3stream.compaction.plan import Target


async def run_copies(
    plan: CopyPlan,
    targets: Sequence[Target],
    reader: BlockReader,
    uploads: PartUploads,
    memory: memoryview,
) -> None:
    """Write all outputs of a plan, one after the other.

    Args:
        plan: the parts of each output.
        targets: ids and keys of the outputs, in the plan's order.
        reader: reads blocks into the buffer.
        uploads: uploads parts from the buffer and starts server-side copies.
        memory: the buffer, at least `plan.held_bytes_max` long.

    Raises:
        ObjectNotFoundError, ObjectCorruptError, ObjectAlreadyExistsError, ObjectStoreError: as
            `Compaction.run`.
    """
    for copy, target in zip(plan.copies, targets, strict=True):
        await _Copying(plan, target, reader, uploads, memory).write(copy)


class _Copying:
    """Writer of one output."""

    def __init__(
        self,
        plan: CopyPlan,
        target: Target,
        reader: BlockReader,
        uploads: PartUploads,
        memory: memoryview,
    ) -> None:
        self._sources = plan.sources
        self._target = target
        self._reader = reader
        self._uploads = uploads
        self._memory = memory

    async def write(self, copy: PlannedCopy) -> None:
        target = self._target
        if not target.planned.is_multipart:
            (part,) = copy.parts
            assert isinstance(part, RewrittenPart), "the only part of an object must not be a copy"
            await self._reader.read(part.reads, self._memory)
            await self._uploads.put(target.key, [self._memory[: part.size_bytes], target.end()])
            return
        await self._uploads.begin(target.key)
        await all_of([self._copy_all(copy.parts), self._rewrite_all(copy)])
        await self._uploads.complete(target.key, target.planned.size_bytes)

    async def _copy_all(self, parts: Sequence[Part]) -> None:
        await all_of(
            self._uploads.copy(
                self._target.key, number, self._sources[part.source].key, part.start, part.size_bytes
            )
            for number, part in enumerate(parts, 1)
            if isinstance(part, CopiedPart)
        )

    async def _rewrite_all(self, copy: PlannedCopy) -> None:
        """Upload the rewritten parts, and index and footer with or after them."""
        last = copy.output.part_count
        for number, part in enumerate(copy.parts, 1):
            if isinstance(part, CopiedPart):
                continue
            await self._reader.read(part.reads, self._memory)
            buffers: list[Buffer] = [self._memory[: part.size_bytes]]
            if number == last:
                buffers.append(self._target.end())
            await self._uploads.upload(self._target.key, number, buffers)
        if last > len(copy.parts):
            await self._uploads.upload(self._target.key, last, [self._target.end()])
