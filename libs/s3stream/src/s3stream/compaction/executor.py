"""Execution of a compaction plan: writes the planned objects within the planned memory.

Outputs are invisible until the worker commits them. Execution is never resumed: a crash leaves prepared ids
and open multipart uploads, and garbage collection removes both (docs/design/compaction.md#plans).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_runtime.budgets import ByteBudget
from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import MultipartStore, ObjectStore

from s3stream.compaction.block_memory import BlockMemory
from s3stream.compaction.copy_plan import CopyPlan
from s3stream.compaction.copy_run import run_copies
from s3stream.compaction.iteration_run import run_iterations
from s3stream.compaction.movement import BlockReader, PartUploads, Throttle
from s3stream.compaction.plan import CompactionPlan, OutputKind, PlannedOutput, Target
from s3stream.objects.keys import object_key
from s3stream.ports import PreparedObjects, UploadedObject

READS_IN_FLIGHT_MAX: Final = 4
"""Without reads in place, each concurrent read briefly holds its bytes twice: in the client and in
the buffer. With reads of 4 MiB, this needs up to 16 MiB above the budget."""

UPLOADS_IN_FLIGHT_MAX: Final = 4
"""Concurrent uploads need no memory above the budget, because they send from the buffer itself."""

Prepare: TypeAlias = Callable[[int], Awaitable[PreparedObjects]]
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CompactedObjects:
    """Objects to commit in place of the sources."""

    stream_set_object: UploadedObject | None
    stream_objects: tuple[UploadedObject, ...]


class Compaction:
    """Executes plans, one after the other or concurrently within one budget.

    Args:
        store: store of the objects.
        multipart: multipart interface of the same store.
        prepare: reserves ids under the lease.
        budget: bytes of blocks that this process may hold.
        throttle: consulted before every call.
        memory: memory for blocks, within the budget; created by default.
        on_progress: receives the bytes of blocks moved so far, and the total.
        reads_in_flight_max: concurrent reads of one plan.
        uploads_in_flight_max: concurrent puts, parts and copies of one plan.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        multipart: MultipartStore,
        prepare: Prepare,
        budget: ByteBudget,
        throttle: Throttle,
        memory: BlockMemory | None = None,
        on_progress: Progress | None = None,
        reads_in_flight_max: int = READS_IN_FLIGHT_MAX,
        uploads_in_flight_max: int = UPLOADS_IN_FLIGHT_MAX,
    ) -> None:
        self._store = store
        self._multipart = multipart
        self._prepare = prepare
        self._budget = budget
        self._throttle = throttle
        self._memory = memory if memory is not None else BlockMemory()
        self._on_progress = on_progress
        self._reads_in_flight_max = reads_in_flight_max
        self._uploads_in_flight_max = uploads_in_flight_max

    async def run(self, plan: CompactionPlan | CopyPlan) -> CompactedObjects:
        """Write all outputs of a plan. On return they are durable, and invisible until the commit.

        Raises:
            ObjectNotFoundError: a source was deleted.
            ObjectCorruptError: a source is damaged; the message names the block.
            ObjectAlreadyExistsError: the key of a prepared id exists.
            ObjectStoreError: the store failed longer than retries allow.
            BudgetExceededError: too many plans wait for the budget.
        """
        assert not plan.is_settled, "the plan replaces nothing"
        if not plan.outputs:
            return CompactedObjects(None, ())
        await self._budget.acquire(plan.held_bytes_max)
        try:
            targets = await self._targets(plan.outputs)
            await self._move(plan, targets)
        finally:
            self._budget.release(plan.held_bytes_max)
        return _compacted(targets)

    async def _move(self, plan: CompactionPlan | CopyPlan, targets: Sequence[Target]) -> None:
        on_moved = _progress(self._on_progress, plan.read_bytes)
        reader = BlockReader(
            self._store,
            plan.sources,
            self._throttle,
            reads_in_flight_max=self._reads_in_flight_max,
            on_moved=on_moved,
        )
        uploads = PartUploads(
            self._store,
            self._multipart,
            self._throttle,
            uploads_in_flight_max=self._uploads_in_flight_max,
            on_moved=on_moved,
        )
        try:
            with self._memory.lent(plan.held_bytes_max) as memory:
                if isinstance(plan, CompactionPlan):
                    await run_iterations(plan, targets, reader, uploads, memory)
                else:
                    await run_copies(plan, targets, reader, uploads, memory)
        except BaseException:  # also after cancellation: a stopping worker waits for this
            await uploads.abort()
            raise

    async def _targets(self, outputs: tuple[PlannedOutput, ...]) -> list[Target]:
        prepared = await self._prepare(len(outputs))
        assert prepared.count >= len(outputs)
        return [
            Target(
                output,
                ObjectId(prepared.first_object_id + number),
                object_key(prepared.namespace, ObjectId(prepared.first_object_id + number)),
            )
            for number, output in enumerate(outputs)
        ]


def _compacted(targets: Sequence[Target]) -> CompactedObjects:
    shared = [target for target in targets if target.planned.kind is OutputKind.STREAM_SET_OBJECT]
    own = tuple(target.uploaded() for target in targets if target.planned.kind is OutputKind.STREAM_OBJECT)
    return CompactedObjects(shared[0].uploaded() if shared else None, own)


def _progress(report: Progress | None, total_bytes: int) -> Callable[[int], None]:
    moved_bytes = 0

    def on_moved(size_bytes: int) -> None:
        nonlocal moved_bytes
        moved_bytes += size_bytes
        if report is not None:
            report(moved_bytes, total_bytes)

    return on_moved
