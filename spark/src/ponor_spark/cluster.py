"""Connection of a driver to the controllers: snapshot leases, and the metadata of snapshots.

`metadata_capture` (rows) and `partition_layout` (Meta streams) turn the metadata into a snapshot. This
module reads no records.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from ponor.common.v1 import error_pb2
from ponor.controller.v1.cluster_service_pb2 import SnapshotOpened
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.segment import TXN
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.clock import Clock
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from ponor_spark.clip import AbortedRange
from ponor_spark.cluster_address import ClusterAddress, ask_brokers, find_cluster
from ponor_spark.errors import (
    ClusterUnreachableError,
    OptionError,
    PonorSparkError,
    SnapshotExpiredError,
    SnapshotIncompleteError,
    StoredDataError,
    lease_over,
)
from ponor_spark.lease_notes import LeaseNotes
from ponor_spark.loop_thread import LoopThread
from ponor_spark.meta_reading import MetaReading, read_aborted
from ponor_spark.metadata_capture import CapturedMetadata, CapturedPartition, capture
from ponor_spark.object_indexes import ObjectIndexes
from ponor_spark.object_source import ObjectSource, open_object_source
from ponor_spark.partition_layout import (
    DATA_KINDS,
    META,
    PartitionBehindError,
    PartitionLayout,
    lay_out,
    stable_layout,
)
from ponor_spark.snapshot import Lease, PartitionSnapshot, Snapshot
from ponor_spark.topics import TopicChoice

__all__ = ["ClusterAddress", "ClusterReader", "find_cluster"]

T = TypeVar("T")
ANSWER_S_MAX: Final = 20.0
"""Timeout for a snapshot lease, and for the metadata committed up to it."""
CLOSE_S_MAX: Final = 5.0
BEHIND_S_MAX: Final = 15.0
"""Time to wait until the committed data of every partition has no gap. A gap exists while uploads are being
committed, which takes a short time.
"""
BEHIND_PAUSE_S: Final = 0.2
HOLDER_CHARACTERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class _Found:
    """Readable part of a partition."""

    layout: PartitionLayout
    aborted: tuple[AbortedRange, ...] = ()


class ClusterReader:
    """Opens snapshots, and renews and closes their leases.

    Blocking, for one thread; connects at the first call. The caller closes it. All calls raise
    `PonorSparkError` with a one-line message.
    """

    def __init__(
        self,
        address: ClusterAddress,
        *,
        notes: LeaseNotes | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        """Create a reader without connecting.

        Args:
            address: address of the cluster, from `find_cluster`.
            notes: where leases are recorded for the lease keeper; by default from the environment.
            environment: source of the object store's credentials and of the notes directory; by default this
                process's environment.
            clock: clock for pauses.
            answer_s_max: timeout after which controllers count as unreachable.
        """
        self._address = address
        self._environment = os.environ if environment is None else environment
        self._notes = LeaseNotes.of_environment(self._environment) if notes is None else notes
        self._clock = clock or SystemClock()
        self._answer_s_max = answer_s_max
        self._network = GrpcNetwork()
        self._client = ClusterClient(self._network, self._clock, address.controllers)
        self._meta = MetaReading()
        self._source: ObjectSource | None = None
        self._source_of = ""
        self._loop: LoopThread | None = None
        self._subscription: SubscriptionClient | None = None
        self._following: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_snapshot(
        self, topics: TopicChoice, *, ttl_ms: int, read_committed: bool = False, holder: str = ""
    ) -> Snapshot:
        """Lease a snapshot, read one image at or above its index, and read that image's Meta streams.

        Args:
            topics: the partitions to read.
            ttl_ms: duration of the lease, unless it is renewed.
            read_committed: end at the last stable offset, and return the aborted transactions.
            holder: name of the reader, for display.
        """
        lease = self._lease(holder or f"spark on {platform.node()}, process {os.getpid()}", ttl_ms)
        try:
            return self._fill(lease, topics, read_committed)
        except BaseException:
            with suppress(PonorSparkError):
                self.close_lease(lease.lease_id)
            raise

    def renew(self, lease_id: int, ttl_ms: int) -> int:
        """Extend the lease by `ttl_ms` from now; return its end in cluster time.

        Raises:
            SnapshotExpiredError: the lease has ended.
        """
        opened: SnapshotOpened = self._ask(
            self._client.renew_snapshot(lease_id, ttl_ms, timeout_s=self._answer_s_max), lease_id
        )
        return opened.leased_until_ms

    def close_lease(self, lease_id: int) -> None:
        """Close the lease; no error if it has ended."""
        self._notes.forget(lease_id, self._address.controllers)
        self._ask(self._client.close_snapshot(lease_id, timeout_s=CLOSE_S_MAX), lease_id)

    def object_source(self, store: str) -> ObjectSource:
        """Return a reader of the store's objects; reuse the client that opened the snapshot, because a new
        one resolves credentials and connects.
        """
        if self._source is None or self._source_of != store:
            try:
                self._source = open_object_source(store, self._environment)
            except ValueError as error:
                raise OptionError(f"store: {error}") from error
            self._source_of = store
        return self._source

    def close(self) -> None:
        """Disconnect. Leases remain until they are closed or expire. Idempotent."""
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        try:
            loop.run(self._disconnect())
        finally:
            loop.close()

    def _lease(self, holder: str, ttl_ms: int) -> Lease:
        opened: SnapshotOpened = self._ask(
            self._client.open_snapshot(holder[:HOLDER_CHARACTERS_MAX], ttl_ms, timeout_s=self._answer_s_max)
        )
        lease = Lease(
            opened.lease_id,
            holder,
            ttl_ms,
            opened.index,
            opened.leased_until_ms,
            opened.cluster_time_ms,
            self._address.controllers,
        )
        self._notes.note(lease)
        return lease

    def _fill(self, lease: Lease, topics: TopicChoice, read_committed: bool) -> Snapshot:
        leased_ns = self._clock.monotonic_ns()
        deadline_ns = leased_ns + int(BEHIND_S_MAX * 1e9)
        wanted_index = lease.index
        while True:
            captured = self._run(self._capture(wanted_index, topics))
            store = self._object_store(captured.brokers)
            try:
                with ObjectIndexes(self.object_source(store), lease_id=lease.lease_id) as indexes:
                    found = self._lay_out(captured, indexes, read_committed)
                return _snapshot(lease, captured, found, store)
            except SnapshotExpiredError as error:
                if self._clock.monotonic_ns() - leased_ns >= lease.ttl_ms * 1_000_000:
                    raise
                raise StoredDataError(
                    f"store: {error.__cause__}. The cluster's metadata refer to it; correct the"
                    " option store if you set it, or restore the object (`ponor object verify` checks all"
                    " objects)"
                ) from error
            except PartitionBehindError as error:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise SnapshotIncompleteError(
                        f"snapshot lease {lease.lease_id}: {error}, for {BEHIND_S_MAX:.0f} s; check that the"
                        " partition's broker runs and uploads (`ponor cluster info`), then load again"
                    ) from error
            self._run(self._clock.sleep(BEHIND_PAUSE_S))
            wanted_index = captured.index

    def _lay_out(
        self, captured: CapturedMetadata, indexes: ObjectIndexes, read_committed: bool
    ) -> list[_Found]:
        metas = [each.streams[META] for each in captured.partitions if META in each.streams]
        values = self._meta.values_of(metas, captured.pieces, captured.namespaces, indexes)
        found: list[_Found] = []
        for each in captured.partitions:
            name = f"{each.topic}-{each.partition}"
            own = values[each.streams[META].stream_id] if META in each.streams else {}
            try:
                layout = lay_out(own, each.streams)
                if not read_committed:
                    found.append(_Found(layout))
                    continue
                layout = stable_layout(layout, own, each.streams)
            except PartitionBehindError as error:
                raise PartitionBehindError(f"{name}: {error}") from error
            except PartitionCorruptError as error:
                raise StoredDataError(f"{name}: {error}; run `ponor object verify` for details") from error
            found.append(_Found(layout, _aborted(each, captured, indexes, layout)))
        return found

    def _object_store(self, brokers: tuple[str, ...]) -> str:
        """Return the store's URL; if neither the options nor their brokers gave it, query `brokers`, which
        the metadata lists.
        """
        if not self._address.object_store:
            try:
                self._address = ClusterAddress(
                    self._address.controllers, ask_brokers(brokers).object_store, self._address.brokers
                )
            except ClusterUnreachableError as error:
                raise ClusterUnreachableError(
                    f"store: no broker returned the URL of the cluster's object store ({error}); set the"
                    " option store"
                ) from error
        return self._address.object_store

    # Coroutines on the event loop and their callers

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = LoopThread("ponor-cluster")
        return self._loop.run(work)

    def _ask(self, question: Coroutine[Any, Any, T], lease_id: int | None = None) -> T:
        try:
            return self._run(question)
        except NoControllerError as error:
            raise self._unreachable(str(error)) from error
        except OperationError as error:
            if error.code == error_pb2.ERROR_CODE_SNAPSHOT_EXPIRED and lease_id is not None:
                raise lease_over(lease_id, "the controllers ended it") from error
            raise ClusterUnreachableError(f"the controllers refuse: {error}") from error

    async def _capture(self, index: int, topics: TopicChoice) -> CapturedMetadata:
        """Capture the first metadata at or above an index; no record is applied during the copy."""
        subscription, following = self._follow()
        reading = asyncio.create_task(subscription.wait_for(index))
        try:
            async with asyncio.timeout(self._answer_s_max):
                await asyncio.wait((following, reading), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            reading.result()
        except (TimeoutError, MetadataLagError) as error:
            raise self._unreachable(f"no metadata at index {index} arrived") from error
        except OperationError as error:
            raise ClusterUnreachableError(f"the controllers refuse: {error}") from error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return capture(subscription.image, topics)

    def _follow(self) -> tuple[SubscriptionClient, asyncio.Task[None]]:
        if self._subscription is None or self._following is None or self._following.done():
            self._subscription = SubscriptionClient(
                network=self._network,
                clock=self._clock,
                randomness=SystemRandomness(),
                telemetry=Telemetry(),
                addresses=self._address.controllers,
            )
            self._following = asyncio.create_task(self._subscription.run())
        return self._subscription, self._following

    async def _disconnect(self) -> None:
        if self._subscription is not None and self._following is not None:
            await self._subscription.close()
            await asyncio.gather(self._following, return_exceptions=True)
        self._subscription = self._following = None
        await self._network.close()

    def _unreachable(self, reason: str) -> ClusterUnreachableError:
        where = ", ".join(self._address.controllers)
        return ClusterUnreachableError(
            f"controllers: no answer from {where} ({reason}); is the cluster running, and are they reachable"
            " from the driver?"
        )


def _aborted(
    each: CapturedPartition, captured: CapturedMetadata, indexes: ObjectIndexes, layout: PartitionLayout
) -> tuple[AbortedRange, ...]:
    if TXN not in each.streams:
        return ()
    known = read_aborted(each.streams[TXN], captured.pieces, captured.namespaces, indexes)
    start, end = layout.log_start_offset, layout.committed_end_offset
    return tuple(one for one in known if one.last_offset >= start and one.first_offset < end)


def _snapshot(lease: Lease, captured: CapturedMetadata, found: list[_Found], store: str) -> Snapshot:
    partitions = tuple(
        PartitionSnapshot(
            each.topic,
            each.topic_id,
            each.partition,
            one.layout.log_start_offset,
            one.layout.committed_end_offset,
            one.layout.segments,
            one.aborted,
            each.leader,
        )
        for each, one in zip(captured.partitions, found, strict=True)
    )
    data = [
        each.streams[kind].stream_id
        for each in captured.partitions
        for kind in DATA_KINDS
        if kind in each.streams
    ]
    pieces = {stream_id: captured.pieces[stream_id] for stream_id in data}
    return Snapshot(
        captured.cluster_id,
        captured.index,
        lease,
        store,
        partitions,
        tuple(captured.namespaces),
        pieces,
        captured.brokers,
    )
