"""A client that leases compactions and commits plans that do not follow from the sources.

A correct worker never has a stale plan: sources do not change, and starts of streams only rise. Only wrong
commits test that the controller checks plans. The client writes no bytes: an accepted commit would therefore
name an object that is not in the store. When its leases expire, other workers get the tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.invariants.registry import Checks

LEASES_MAX: Final = 6
"""Maximum number of tasks that the client leases. It is low because, for minutes after a task
ended without a commit, the controller offers its sources in smaller tasks or not at all.
"""
LEASE_MS: Final = (400, 1_500, 4_000)
OBJECT_TTL_MS: Final = 5_000
PAUSE_S: Final = (0.3, 1.5)
FROM_A_LOST_LOG: Final = 1_000_000
"""Number of batches by which a wrong plan is ahead of the log."""
Result = wire.CompactionOutcome
ENDS: Final = frozenset({Result.RESULT_SOURCE_GONE, Result.RESULT_STALE_PLAN, Result.RESULT_FENCED})
"""Answers to commits that changed nothing."""
OUTCOMES: Final = ("STALE_PLAN", "FENCED", "SOURCE_GONE", "DONE", "REFUSED")
"""DONE: the sources had no live data, and the commit had no outputs."""
REFUSALS: Final = frozenset(
    {
        error_pb2.ERROR_CODE_INVALID_REQUEST,
        error_pb2.ERROR_CODE_OBJECT_EXPIRED,
        error_pb2.ERROR_CODE_OBJECT_NOT_PREPARED,
    }
)
"""The cluster does not compact yet, or the object id has expired."""


class WrongCompactor:
    """The client. Its process never crashes, but its session may break.

    Attributes:
        outcomes: number of each answer.
    """

    def __init__(self, name: str, node_id: NodeId, addresses: Sequence[str], checks: Checks) -> None:
        self.name = name
        self._node_id = node_id
        self._addresses = tuple(addresses)
        self._checks = checks
        self.outcomes: Counter[str] = Counter()
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Commit wrong plans until stopped."""
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=NodeIdentity(self._node_id, NodeRole.COMPACTOR, runtime.randomness.token(16)),
            addresses=self._addresses,
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(session.run())
            await session.ready()
            leases = 0
            while not self.stop:
                if leases < LEASES_MAX:
                    leases += await self._try_task(runtime, session)
                await runtime.clock.sleep(runtime.randomness.uniform(*PAUSE_S))
            await session.close()
            await running
        self.is_finished = True

    async def _try_task(self, runtime: Runtime, session: SessionClient) -> bool:
        """Lease one task, if the controller has one. Return False if it granted none."""
        ttl_ms = LEASE_MS[runtime.randomness.below(len(LEASE_MS))]
        lease = wire.LeaseCompaction(ttl_ms=ttl_ms, source_bytes_max=1 << 40)
        try:
            result = await session.submit(wire.Operation(lease_compaction=lease))
            if result.WhichOneof("outcome") != "compaction_granted":
                return False
            if runtime.randomness.below(2):
                await self._commit(runtime, session, result.compaction_granted, ttl_ms)
        except OperationError as refused:
            if refused.code not in REFUSALS:
                raise
            self.outcomes["REFUSED"] += 1
        return True

    async def _commit(
        self, runtime: Runtime, session: SessionClient, task: wire.CompactionGranted, ttl_ms: int
    ) -> None:
        below = runtime.randomness.below
        body = wire.CommitCompaction(task_id=task.task_id, token=task.token, planned_index=task.planned_index)
        error = below(3)
        if error == 0:
            body.planned_index += FROM_A_LOST_LOG
        elif error == 1 and task.streams:
            await self._take_too_much(session, body, task.streams[below(len(task.streams))])
        await runtime.clock.sleep(runtime.randomness.uniform(0.0, 1.2 * ttl_ms / 1000))
        result = await session.submit(wire.Operation(commit_compaction=body))
        outcome = result.compaction_outcome.result
        self.outcomes[Result.Result.Name(outcome).removeprefix("RESULT_")] += 1
        self._checks.require(
            35,
            outcome in ENDS or not (error == 0 or body.stream_objects),
            f"compaction {task.task_id} was committed with data that its sources lack: {body}",
        )
        if outcome in ENDS and below(3) == 0:
            end = wire.EndCompaction(task_id=task.task_id, token=task.token, reason="erred")
            await session.submit(wire.Operation(end_compaction=end))

    async def _take_too_much(
        self, session: SessionClient, body: wire.CommitCompaction, stream: wire.StreamState
    ) -> None:
        """Add an output with a whole stream and one offset beyond its end."""
        prepare = wire.PrepareObjects(count=1, ttl_ms=OBJECT_TTL_MS)
        reserved = (await session.submit(wire.Operation(prepare_objects=prepare))).objects_reserved
        made = body.stream_objects.add(object_id=reserved.first_object_id, size_bytes=1_000)
        made.range.stream_id = stream.stream_id
        made.range.stream_epoch = stream.stream_epoch
        made.range.start_offset, made.range.end_offset = stream.start_offset, stream.end_offset + 1
