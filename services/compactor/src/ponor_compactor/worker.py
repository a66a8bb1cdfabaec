"""Compaction worker: leases a task, executes it, commits it, and repeats.

Output that is not committed needs no cleanup by the worker: its ids expire, and garbage collection deletes
it.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final

from ponor_metadata.client.controllers import ReconnectBackoff
from ponor_rpc.errors import OperationError
from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.clock import Clock
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStoreError
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Counter, Telemetry
from s3stream.compaction.executor import CompactedObjects
from s3stream.errors import CompactionLimitError, ObjectCorruptError, SourcesDisagreeError

from ponor_compactor.controller_tasks import ControllerTasks, Result
from ponor_compactor.leased_task import LeasedTask
from ponor_compactor.pace import Pace
from ponor_compactor.progress import Progress
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.task_run import TaskRun

logger = logging.getLogger("ponor.compactor")
RENEWALS_PER_LEASE: Final = 3


class Outcome(Enum):
    """Result of one attempt; the values are labels of `ponor_compactor_tasks_total`."""

    NOTHING = "nothing"
    DONE = "done"
    SETTLED = "settled"
    SOURCE_GONE = "source_gone"
    STALE_PLAN = "stale_plan"
    FENCED = "fenced"
    UNFIT = "unfit"
    DAMAGED = "damaged"
    REFUSED = "refused"
    STORE_FAILED = "store_failed"


ENDED_BY_WORKER: Final = (
    Outcome.SETTLED,
    Outcome.SOURCE_GONE,
    Outcome.STALE_PLAN,
    Outcome.UNFIT,
    Outcome.DAMAGED,
    Outcome.REFUSED,
)
"""Outcomes after which the worker ends the task. The controller then plans the next one from newer metadata
and with fewer sources.

STORE_FAILED is not among them: the worker lets the lease expire, so that the task keeps its place in the
queue.
"""
PAUSING: Final = (Outcome.NOTHING, Outcome.STORE_FAILED, Outcome.REFUSED)
"""Outcomes that lengthen the pause when they repeat. After other failures the worker waits for the shortest
pause; after DONE it does not wait.
"""
_OUTCOME_OF: Final = {
    Result.RESULT_DONE: Outcome.DONE,
    Result.RESULT_SOURCE_GONE: Outcome.SOURCE_GONE,
    Result.RESULT_STALE_PLAN: Outcome.STALE_PLAN,
    Result.RESULT_FENCED: Outcome.FENCED,
}


class TaskReassignedError(Exception):
    """The lease was not renewed, because the task has ended or belongs to another worker."""


class Worker:
    """Executes one task at a time; run more processes for more parallelism."""

    def __init__(
        self,
        tasks: ControllerTasks,
        run: TaskRun,
        progress: Progress,
        settings: CompactorSettings,
        *,
        pace: Pace,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
    ) -> None:
        self._tasks = tasks
        self._run = run
        self._progress = progress
        self._settings = settings
        self._pace = pace
        self._clock = clock
        self._pause = ReconnectBackoff(
            randomness,
            ms_min=settings.compactor_poll_interval_ms_min,
            ms_max=max(settings.compactor_poll_interval_ms_max, settings.compactor_poll_interval_ms_min),
        )
        self._outcomes: dict[Outcome, Counter] = {
            outcome: telemetry.counter("ponor_compactor_tasks_total", outcome=outcome.value)
            for outcome in Outcome
            if outcome is not Outcome.NOTHING
        }
        self._refusal = ""
        """Reason of the last refused lease; used to log each reason once."""
        self._replaced_bytes = telemetry.counter("ponor_compactor_replaced_bytes_total")

    async def run(self) -> None:
        """Execute tasks until cancelled.

        Raises:
            NodeFencedError: another process registered under this node id; this one must stop.
            SessionClosedError: this process closed the session.
        """
        while True:
            outcome = await self.once()
            if outcome not in PAUSING:
                self._pause.reset()
            if outcome is not Outcome.DONE:
                await self._clock.sleep(self._pause.next_seconds())

    async def once(self) -> Outcome:
        """Lease and execute one task.

        Raises:
            NodeFencedError: another process registered under this node id; this one must stop.
            SessionClosedError: this process closed the session.
        """
        try:
            task = await self._tasks.lease()
        except OperationError as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                logger.warning("the controller refused to lease a task, retrying: %s", error)
            return Outcome.REFUSED
        self._refusal = ""
        if task is None:
            return Outcome.NOTHING
        self._progress.begin(str(task))
        with self._pace.working():
            outcome, message = await self._execute(task)
        took_s = self._progress.end()
        self._outcomes[outcome].add()
        if outcome is Outcome.DONE:
            self._replaced_bytes.add(task.source_bytes)
        level = logging.ERROR if outcome is Outcome.DAMAGED else logging.INFO
        logger.log(
            level, "%s: %s after %.1f s%s", task, outcome.value, took_s, f": {message}" if message else ""
        )
        if outcome in ENDED_BY_WORKER:
            await self._end(task, f"{outcome.value}: {message}" if message else outcome.value)
        return outcome

    async def _execute(self, task: LeasedTask) -> tuple[Outcome, str]:
        """Return the outcome and a message about it."""
        try:
            made = await self._while_renewed(task)
            if made is None:
                return Outcome.SETTLED, ""
            answer = await self._tasks.commit(task, made)
        except TaskReassignedError:
            return Outcome.FENCED, ""
        except ObjectNotFoundError as error:
            return Outcome.SOURCE_GONE, str(error)
        except (ObjectCorruptError, SourcesDisagreeError) as error:
            return Outcome.DAMAGED, str(error)
        except (CompactionLimitError, BudgetExceededError) as error:
            return Outcome.UNFIT, str(error)
        except ObjectStoreError as error:
            return Outcome.STORE_FAILED, str(error)
        except OperationError as error:
            return Outcome.REFUSED, str(error)
        return _OUTCOME_OF[answer.result], answer.message

    async def _while_renewed(self, task: LeasedTask) -> CompactedObjects | None:
        """Execute the task while renewing its lease; cancel the work when the lease is lost."""
        work = asyncio.ensure_future(self._run.run(task, self._tasks.prepare))
        heartbeat = asyncio.ensure_future(self._renew(task))
        try:
            await asyncio.wait((work, heartbeat), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            heartbeat.result()
            raise TaskReassignedError(str(task))
        finally:
            for each in (work, heartbeat):
                each.cancel()
            await asyncio.gather(work, heartbeat, return_exceptions=True)

    async def _renew(self, task: LeasedTask) -> None:
        """Renew the lease until the controller refuses. The work continues while no controller answers: the
        controller checks the token at the commit.
        """
        while True:
            await self._clock.sleep(self._settings.compactor_lease_ttl_ms / RENEWALS_PER_LEASE / 1000)
            if not await self._tasks.renew(task):
                return

    async def _end(self, task: LeasedTask, reason: str) -> None:
        try:
            await self._tasks.end(task, reason)
        except OperationError as error:
            logger.warning("%s could not be ended; its lease will expire: %s", task, error)
