"""Composition of the delivery of records of share groups, and its two APIs."""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_runtime.runtime import Runtime

from ponor_broker.coordination.ports import GroupConfigs
from ponor_broker.coordination.share_persister import SharePersister
from ponor_broker.handlers.fetch.fetch_parking import ReadBounds
from ponor_broker.handlers.offsets.offset_lookup import first_at_or_after
from ponor_broker.handlers.share.acknowledging import Acknowledging
from ponor_broker.handlers.share.share_acknowledge import ShareAcknowledgeHandler
from ponor_broker.handlers.share.share_fetch import ShareFetchHandler
from ponor_broker.handlers.share.share_reading import ShareReader
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import ApiHandler, WhenFenced
from ponor_broker.serving import Serving
from ponor_broker.settings import BrokerSettings
from ponor_broker.share_partitions.led_partitions import LedSharePartitions
from ponor_broker.share_partitions.sessions import ShareSession, ShareSessions
from ponor_broker.share_partitions.settings import ShareRules


class ShareDelivery:
    """Share partitions, share sessions and their handlers. Call `close` before partitions close."""

    def __init__(
        self,
        persister: SharePersister,
        partitions: PartitionManager,
        bounds: ReadBounds,
        serving: Serving,
        runtime: Runtime,
        settings: BrokerSettings,
        group_configs: GroupConfigs,
    ) -> None:
        telemetry = runtime.telemetry
        rules = ShareRules(settings.share, group_configs)
        self.partitions = LedSharePartitions(persister, settings.share, rules, _first_since, serving, runtime)
        partitions.registry.removed.append(self.partitions.partition_removed)
        self.sessions = ShareSessions(
            settings.share.group_share_sessions_max, telemetry, on_ended=self._session_ended
        )
        acknowledging = Acknowledging(partitions, self.partitions, telemetry)
        reader = ShareReader(partitions, self.partitions, bounds, telemetry)
        self.fetch = ShareFetchHandler(
            self.sessions, acknowledging, reader, rules, wait_ms_max=settings.fetch_wait_ms_max
        )
        self.acknowledge = ShareAcknowledgeHandler(self.sessions, acknowledging, rules)

    def handlers(self) -> list[ApiHandler]:
        """Return the APIs of members that fetch."""
        refuses = WhenFenced.REFUSES
        return [
            ApiHandler(ApiKey.SHARE_FETCH, 1, 2, self.fetch.handle, refuses),
            ApiHandler(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, self.acknowledge.handle, refuses),
        ]

    def _session_ended(self, session: ShareSession, is_last: bool) -> None:
        key = session.key
        self.partitions.release(
            *key, list(session.partitions), is_last=is_last, has_returned=lambda: key in self.sessions
        )

    async def close(self) -> None:
        """Answer waiting acknowledgements and stop."""
        await self.partitions.close()


async def _first_since(partition: Partition, timestamp_ms: int) -> int | None:
    found = await first_at_or_after(partition, timestamp_ms)
    return None if found is None else found.offset
