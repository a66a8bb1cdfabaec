"""Leaving the cluster in order: everything that this broker leads is moved away, then it says goodbye.

What lives here: when a stop is a drain, what is asked of the controllers for it, and how long it is waited for. Moving the partitions is the controllers'
driver and `partitions`; closing the storage is `app`'s.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1.session_service_pb2 import LeaveCluster, Operation, SetDrain
from ponor_metadata.client.errors import NodeFencedError, OperationTimeoutError, SessionClosedError
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_LED_BY
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.process import Process

from ponor_broker.node import Node

LOG: Final = logging.getLogger("ponor.broker")
ASK_MS_MAX: Final = 1_500
"""Longest wait for the controllers' word on whether to drain; without it this broker stops as if it were alone."""
LOOK_S: Final = 0.1
LEAVE_MS_MAX: Final = 5_000
LEAVE_RETRY_S: Final = 0.05
END_S: Final = 10.0
"""What is left of the process's time when the drain is over or given up."""
_NOT_YET: Final = frozenset(
    {
        error_pb2.ERROR_CODE_MOVE_UNDER_WAY,
        error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
        error_pb2.ERROR_CODE_WAL_NOT_HELD,
    }
)
"""Refusals of LeaveCluster that pass: the leader has not seen yet what this process did."""


class Drain:
    """One broker's way out."""

    def __init__(self, node: Node, clock: Clock, process: Process, *, ms_max: int) -> None:
        """`ms_max`: how long the partitions may take to move away; 0: they are never moved for a stop."""
        self._node = node
        self._clock = clock
        self._process = process
        self._ms_max = ms_max

    async def run(self) -> bool:
        """Have everything moved away, if somebody can take it; whether this broker is empty now. It serves meanwhile."""
        if self._ms_max == 0 or not self._has_reason() or not await self._ask():
            return False
        started_ns = self._clock.monotonic_ns()
        self._process.postpone_end(self._ms_max / 1000 + END_S)
        LOG.info("draining: %d partitions move to other brokers", self._led())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._ms_max / 1000):
                while not (self._is_empty() or self._cluster_stops()):
                    await self._clock.sleep(LOOK_S)  # a look costs as much as there is left to move
        self._process.postpone_end(END_S)
        duration_ms = (self._clock.monotonic_ns() - started_ns) // 1_000_000
        if self._is_empty():
            LOG.info("drained in %d ms", duration_ms)
            return True
        LOG.warning(
            "not drained after %d ms: %d partitions are still led here, %d streams open (%s); this broker stops nevertheless",
            duration_ms,
            self._led(),
            self._streams_held(),
            "the whole cluster stops" if self._cluster_stops() else "drain_ms_max is over",
        )
        return False

    async def leave(self) -> None:
        """Say goodbye: nobody waits for this process any more, or looks for it."""
        self._node.part()
        try:
            async with asyncio.timeout(LEAVE_MS_MAX / 1000):
                while not await self._try_to_leave():
                    await self._clock.sleep(LEAVE_RETRY_S)
        except NodeFencedError:
            LOG.info("left the cluster")  # an answer was lost, and the question asked again
        except (OperationError, SessionClosedError, TimeoutError) as error:
            LOG.warning(
                "the controllers were not told that this broker leaves, they will suspect it: %s", error
            )
        else:
            LOG.info("left the cluster")

    async def _try_to_leave(self) -> bool:
        try:
            await self._node.session.submit(Operation(leave_cluster=LeaveCluster()))
        except OperationError as error:
            if error.code in _NOT_YET:
                return False
            raise
        return True

    def _has_reason(self) -> bool:
        """Whether somebody is there who could take partitions, as far as the image knows, there is time for it, and the cluster goes on without this broker."""
        if self._cluster_stops():
            LOG.info("the whole cluster stops: nothing is moved away")
            return False
        if self._process.is_hurried:
            LOG.info("whoever started this broker is gone: nothing is moved away")
            return False
        return any(
            row.role is NodeRole.BROKER
            and row.node_id != self._node.node_id
            and not row.fenced
            and not row.draining
            for row in self._node.subscription.image[NODES]
        )

    async def _ask(self) -> bool:
        body = SetDrain(node_id=self._node.node_id, draining=True)
        try:
            await self._node.session.submit(Operation(set_drain=body), deadline_ms=ASK_MS_MAX)
        except (OperationError, OperationTimeoutError, SessionClosedError) as error:
            LOG.info("nothing is moved away before this stop: %s", error)
            return False
        return True

    def _cluster_stops(self) -> bool:
        image = self._node.subscription.image
        cluster = cluster_of(image)
        if cluster is None:
            return False
        return cluster.stop_until_ms > max(image.cluster_time_ms, self._node.session.cluster_time_ms)

    def _is_empty(self) -> bool:
        return self._led() == 0 and self._streams_held() == 0

    def _led(self) -> int:
        return len(self._node.subscription.image[PARTITIONS].find(PARTITIONS_LED_BY, self._node.node_id))

    def _streams_held(self) -> int:
        rows = self._node.subscription.image[STREAMS].find(STREAMS_OPEN_AT, self._node.node_id)
        return sum(row.node_epoch == self._node.epoch for row in rows)
