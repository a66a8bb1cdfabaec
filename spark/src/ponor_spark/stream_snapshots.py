"""Snapshots of a streaming query. Each check for new rows uses a current snapshot, and a lease ends when its
snapshot is no longer needed.

At most two leases are held: of the newest snapshot, and of the one that planned the running micro-batch,
which is closed when the batch is committed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ponor_runtime.clock import Clock

from ponor_spark.cluster import ClusterReader, find_cluster
from ponor_spark.errors import PonorSparkError
from ponor_spark.object_source import ObjectSource
from ponor_spark.options import Options
from ponor_spark.snapshot import Snapshot
from ponor_spark.tail import with_tails
from ponor_spark.topics import IfThere, TopicChoice

AGE_MS_MIN: Final = 500
"""Minimum time between two snapshots of a query without new rows, which Spark polls 100 times a second."""


class StreamSnapshots:
    """Opens, keeps and closes snapshots; connects at the first call.

    Lives in one worker of the driver as long as the query.
    """

    def __init__(self, options: Options, clock: Clock) -> None:
        self._options: Final = options
        self._clock: Final = clock
        self._cluster: ClusterReader | None = None
        self._opened_at_ns = 0
        self._planned: Snapshot | None = None
        self.newest: Snapshot | None = None

    def fresh(self, *, at_once: bool = False) -> Snapshot:
        """Return a current snapshot, or one that is at most `AGE_MS_MIN` old unless `at_once`.

        Raises:
            PonorSparkError: as `open_snapshot`.
        """
        age_ms = (self._clock.monotonic_ns() - self._opened_at_ns) // 1_000_000
        if self.newest is not None and not at_once and age_ms < AGE_MS_MIN:
            return self.newest
        opened = self._open_with_tails()
        if self.newest is not None and self.newest is not self._planned:
            self.give_back(self.newest)
        self.newest = opened
        self._opened_at_ns = self._clock.monotonic_ns()
        return opened

    def next(self) -> Snapshot:
        """Wait until the newest snapshot is `AGE_MS_MIN` old, and return a current one.

        Raises:
            PonorSparkError: as `open_snapshot`.
        """
        if self.newest is not None:
            age_ns = self._clock.monotonic_ns() - self._opened_at_ns
            asyncio.run(self._clock.sleep(max(0, AGE_MS_MIN * 1_000_000 - age_ns) / 1e9))
        return self.fresh(at_once=True)

    def demand_topics(self) -> None:
        """Check that all topics of the options exist, so that a new query reports a misspelt name even if it
        accepts data loss later.

        Raises:
            PonorSparkError: as `open_snapshot`.
        """
        if not self._options.fail_on_data_loss:
            self.give_back(self._open(self._options.topics))

    def plan_by(self, snapshot: Snapshot) -> None:
        """Keep this snapshot until its batch is committed."""
        if self._planned is not None and self._planned is not snapshot and self._planned is not self.newest:
            self.give_back(self._planned)
        self._planned = snapshot

    def committed(self) -> None:
        """Close the lease of the last planned batch, unless it is of the newest snapshot."""
        if self._planned is not None and self._planned is not self.newest:
            self.give_back(self._planned)
        self._planned = None

    def give_back(self, snapshot: Snapshot) -> None:
        """End a lease early. Best effort: it also expires."""
        with suppress(PonorSparkError):
            self._connected().close_lease(snapshot.lease_id)

    def objects_of(self, snapshot: Snapshot) -> ObjectSource:
        """Return the object reader of a snapshot, one client for the life of the query.

        Raises:
            OptionError: the store does not exist.
        """
        return self._connected().object_source(snapshot.object_store)

    def close(self) -> None:
        """Close all leases and disconnect. Idempotent."""
        if self._cluster is None:
            return
        held = {id(each): each for each in (self.newest, self._planned) if each is not None}
        for each in held.values():
            self.give_back(each)
        self.newest = self._planned = None
        self._cluster.close()
        self._cluster = None

    def _open(self, topics: TopicChoice) -> Snapshot:
        options = self._options
        return self._connected().open_snapshot(
            topics, ttl_ms=options.snapshot_ttl_ms, read_committed=options.read_committed
        )

    def _open_with_tails(self) -> Snapshot:
        options = self._options
        opened = self._open(options.topics if options.fail_on_data_loss else IfThere(options.topics))
        try:
            return with_tails(opened, options)
        except BaseException:
            self.give_back(opened)
            raise

    def _connected(self) -> ClusterReader:
        if self._cluster is None:
            self._cluster = ClusterReader(find_cluster(self._options.cluster))
        return self._cluster
