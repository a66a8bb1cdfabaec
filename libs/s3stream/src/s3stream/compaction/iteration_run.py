"""Execution of iterations: all reads of an iteration, then all its parts, then the next iteration
in the same buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ponor_runtime.disk import Buffer

from s3stream.compaction.movement import BlockReader, PartUploads, all_of
from s3stream.compaction.plan import CompactionPlan, PlannedPart, Target


async def run_iterations(
    plan: CompactionPlan,
    targets: Sequence[Target],
    reader: BlockReader,
    uploads: PartUploads,
    memory: memoryview,
) -> None:
    """Write all outputs of a plan; `targets` are in the plan's order.

    `memory` has at least `plan.held_bytes_max` bytes. Carried bytes stay at the beginning of the buffer, and
    the next iteration reads its blocks into the space after them.

    Raises:
        ObjectNotFoundError, ObjectCorruptError, ObjectAlreadyExistsError, ObjectStoreError: as
            `Compaction.run`.
    """
    for iteration in plan.iterations:
        await reader.read(iteration.reads, memory)
        by_output = [
            (targets[output], list(parts)) for output, parts in groupby(iteration.parts, key=_output)
        ]
        await all_of(_write(target, parts, uploads, memory) for target, parts in by_output)


async def _write(
    target: Target, parts: Sequence[PlannedPart], uploads: PartUploads, memory: memoryview
) -> None:
    """Upload the parts of one output in one iteration."""
    if not target.planned.is_multipart:
        await uploads.put(target.key, _buffers(target, parts[0], memory))
        return
    await uploads.begin(target.key)
    await all_of(uploads.upload(target.key, part.number, _buffers(target, part, memory)) for part in parts)
    if parts[-1].is_last:
        await uploads.complete(target.key, target.planned.size_bytes)


def _buffers(target: Target, part: PlannedPart, memory: memoryview) -> list[Buffer]:
    data = memory[part.place : part.place + part.size_bytes]
    return [data, target.end()] if part.is_last else [data]


def _output(part: PlannedPart) -> int:
    return part.output
