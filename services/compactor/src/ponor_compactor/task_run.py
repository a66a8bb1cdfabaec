"""Execution of one task: read the source indexes, plan, and copy the data.

The worker handles the lease.
"""

from __future__ import annotations

from ponor_metadata.nouns.compactions import CompactionKind
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.object_store import MultipartStore, ObjectStore
from s3stream.compaction.block_memory import BlockMemory
from s3stream.compaction.copy_plan import CopyLimits, CopyPlan
from s3stream.compaction.copy_planning import plan_stream_objects
from s3stream.compaction.executor import CompactedObjects, Compaction, Prepare
from s3stream.compaction.movement import Throttle
from s3stream.compaction.plan import IN_PLACE_READ_BYTES_MAX, READ_BYTES_MAX, CompactionPlan, PlanLimits
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import SourceIndex, read_sources
from s3stream.objects.reader import tail_guess_bytes
from s3stream.stores.reads_in_place import reads_in_place

from ponor_compactor.controller_tasks import require_fit
from ponor_compactor.leased_task import LeasedTask
from ponor_compactor.progress import Progress
from ponor_compactor.settings import CompactorSettings


class TaskRun:
    """Executes tasks one at a time within one memory budget."""

    def __init__(
        self,
        store: ObjectStore,
        multipart: MultipartStore,
        settings: CompactorSettings,
        *,
        budget: ByteBudget,
        throttle: Throttle,
        progress: Progress,
    ) -> None:
        self._store = store
        self._multipart = multipart
        self._settings = settings
        self._budget = budget
        self._throttle = throttle
        self._progress = progress
        self._memory = BlockMemory(settings.compaction_budget_bytes)

    async def run(self, task: LeasedTask, prepare: Prepare) -> CompactedObjects | None:
        """Write the output objects and return them; return None if compaction would not improve the sources.

        Raises:
            ObjectNotFoundError: a source is missing.
            ObjectCorruptError, SourcesDisagreeError: the sources are damaged.
            CompactionLimitError: the task exceeds a bound.
            ObjectStoreError: the store failed.
            OperationError: the controller refused to reserve ids.
        """
        for source in task.sources:
            await self._throttle.before_read(tail_guess_bytes(source.size_bytes))
        plan = self._plan(task, await read_sources(self._store, task.sources))
        if plan.is_settled:
            return None
        require_fit(task, plan.outputs)
        compaction = Compaction(
            store=self._store,
            multipart=self._multipart,
            prepare=prepare,
            budget=self._budget,
            throttle=self._throttle,
            memory=self._memory,
            on_progress=self._progress.moved,
        )
        return await compaction.run(plan)

    def _plan(self, task: LeasedTask, sources: list[SourceIndex]) -> CompactionPlan | CopyPlan:
        settings = self._settings
        minimum = self._multipart.part_size_bytes_min
        if task.kind is CompactionKind.STREAM_OBJECTS:
            copy_limits = CopyLimits(
                settings.compaction_budget_bytes,
                part_size_bytes_min=minimum,
                part_size_bytes=settings.compactor_part_size_bytes,
            )
            return plan_stream_objects(sources, task.streams, copy_limits)
        limits = PlanLimits(
            settings.compaction_budget_bytes,
            split_size_bytes=settings.compactor_split_size_bytes,
            part_size_bytes_min=minimum,
            part_size_bytes=settings.compactor_part_size_bytes,
            read_bytes_max=IN_PLACE_READ_BYTES_MAX if reads_in_place(self._store) else READ_BYTES_MAX,
        )
        force_split = task.kind is CompactionKind.FORCE_SPLIT
        return plan_set_objects(sources, task.streams, limits, force_split=force_split)
