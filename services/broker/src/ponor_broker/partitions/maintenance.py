"""Housekeeping of open partitions, outside the request path.

What lives here: one loop that looks at every open partition from time to time: Time streams that are wanted by now, Meta streams whose
rewrite may be trimmed, producers that were silent for too long. Everything in it may be late without harm.
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_runtime.clock import Clock
from s3stream.errors import S3StreamError

from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.partition_opener import PartitionOpener

LOG: Final = logging.getLogger("ponor.broker.partitions")
INTERVAL_S: Final = 5.0
TIME_STREAMS_PER_ROUND_MAX: Final = 500


class PartitionMaintenance:
    """Runs until cancelled."""

    def __init__(
        self,
        partitions: PartitionManager,
        opener: PartitionOpener,
        clock: Clock,
        *,
        producer_expiration_ms: int,
    ) -> None:
        self._partitions = partitions
        self._opener = opener
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms

    async def run(self) -> None:
        """The loop; a background task."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self.round()

    async def round(self) -> None:
        """Look at every partition once."""
        self._partitions.notice_failures()
        self._expire_producers()
        try:
            await self._add_time_streams()
            await self._trim_meta_streams()
        except S3StreamError as error:
            LOG.warning("partition maintenance will be tried again: %s", error)

    def _expire_producers(self) -> None:
        before_ms = self._clock.wall_ms() - self._producer_expiration_ms
        for partition in self._partitions.all():
            partition.producers.expire(before_ms)

    async def _add_time_streams(self) -> None:
        wanting = [partition for partition in self._partitions.all() if partition.wants_time_stream]
        if wanting:
            await self._opener.add_time_streams(wanting[:TIME_STREAMS_PER_ROUND_MAX])

    async def _trim_meta_streams(self) -> None:
        for partition in self._partitions.all():
            if partition.is_serving:
                await partition.trim_meta()
