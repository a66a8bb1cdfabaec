"""Drain at a stop: all partitions move to other brokers, then the broker leaves the cluster.

Decides whether a stop begins with a drain, requests it from the controllers, and waits for it with a bound.
The controllers and `partitions` move the partitions; `app` closes the storage.
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
"""Longest wait for the controllers' answer to SetDrain; without an answer the broker stops without
a drain."""
POLL_INTERVAL_S: Final = 0.1
LEAVE_MS_MAX: Final = 5_000
LEAVE_RETRY_S: Final = 0.05
END_S: Final = 10.0
"""Time for the rest of the stop after the drain."""
_NOT_YET: Final = frozenset(
    {
        error_pb2.ERROR_CODE_MOVE_UNDER_WAY,
        error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
        error_pb2.ERROR_CODE_WAL_NOT_HELD,
    }
)
"""Refusals of LeaveCluster that are temporary: the leader has not applied this process's last
operations yet."""


class Drain:
    """The drain of one broker."""

    def __init__(self, node: Node, clock: Clock, process: Process, *, ms_max: int) -> None:
        """`ms_max`: longest wait for the moves; 0: a stop never moves partitions."""
        self._node = node
        self._clock = clock
        self._process = process
        self._ms_max = ms_max

    async def run(self) -> bool:
        """Let the controllers move all partitions away if another broker can take them; return whether this
        broker no longer leads any. It continues to serve clients.
        """
        if self._ms_max == 0 or not self._has_reason() or not await self._ask():
            return False
        started_ns = self._clock.monotonic_ns()
        self._process.postpone_end(self._ms_max / 1000 + END_S)
        LOG.info("draining: moving %d partitions to other brokers", self._led())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._ms_max / 1000):
                while not (self._is_empty() or self._cluster_stops()):
                    # the cost of the check is proportional to the partitions that remain
                    await self._clock.sleep(POLL_INTERVAL_S)
        self._process.postpone_end(END_S)
        duration_ms = (self._clock.monotonic_ns() - started_ns) // 1_000_000
        if self._is_empty():
            LOG.info("drained in %d ms", duration_ms)
            return True
        LOG.warning(
            "not drained after %d ms: this broker still leads %d partitions and has %d open streams (%s);"
            " it stops anyway",
            duration_ms,
            self._led(),
            self._streams_held(),
            "the whole cluster is stopping" if self._cluster_stops() else "drain_ms_max has passed",
        )
        return False

    async def leave(self) -> None:
        """Leave the cluster, so that the controllers do not suspect this node."""
        self._node.part()
        try:
            async with asyncio.timeout(LEAVE_MS_MAX / 1000):
                while not await self._try_to_leave():
                    await self._clock.sleep(LEAVE_RETRY_S)
        except NodeFencedError:
            LOG.info("left the cluster")  # an earlier attempt succeeded, and its answer was lost
        except (OperationError, SessionClosedError, TimeoutError) as error:
            LOG.warning("LeaveCluster failed, so the controllers will suspect this broker: %s", error)
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
        """Return whether the image shows another broker that can take partitions, the parent process still
        runs, and the cluster is not stopping.
        """
        if self._cluster_stops():
            LOG.info("the whole cluster is stopping; skipping drain")
            return False
        if self._process.is_forced:
            LOG.info("parent process exited; skipping drain")
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
            LOG.info("drain request failed; skipping drain: %s", error)
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
