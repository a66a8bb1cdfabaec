"""Start of the storage of one broker: its write-ahead log (file or object WAL) and the stream client.

A node recovers its own file log here. The controllers choose a broker that recovers a log in the object store
(`recoverer`); here, this process only opens a new log for its own epoch.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor_metadata.client.seen_history import Witness
from ponor_metadata.nouns.cluster import cluster_of
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient
from s3stream.file_wal import FileWal
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.settings import StorageSettings
from s3stream.stores.probe.start_check import Condition

from ponor_broker.node import Node
from ponor_broker.storage.object_manager import ControllerObjectManager
from ponor_broker.storage.stream_manager import ControllerStreamManager
from ponor_broker.storage.wal_manager import ControllerWalManager

LOG: Final = logging.getLogger("ponor.broker")
WAL_DIRECTORY: Final = "wal"


@dataclass(frozen=True, slots=True)
class StoragePorts:
    """Implementations of s3stream's ports, and the store."""

    store: ObjectStore
    streams: ControllerStreamManager
    objects: ControllerObjectManager
    wals: ControllerWalManager
    witness: Witness

    @classmethod
    def of(cls, node: Node, store: ObjectStore, settings: StorageSettings, clock: Clock) -> StoragePorts:
        """Build the ports of a registered node."""
        session, subscription = node.session, node.subscription
        cluster = cluster_of(subscription.image)
        assert cluster is not None, "the image does not contain the cluster"
        witness = Witness(store, clock, cluster.namespace, node.node_id)
        return cls(
            store,
            ControllerStreamManager(session, subscription, node.node_id),
            ControllerObjectManager(session, subscription, witness, prepared_ttl_ms=settings.prepared_ttl_ms),
            ControllerWalManager(session, subscription),
            witness,
        )


async def start_on_file(
    runtime: Runtime,
    settings: StorageSettings,
    node: Node,
    ports: StoragePorts,
    directory: PurePath,
    tasks: BackgroundTasks,
) -> StreamClient:
    """Recover the log that an earlier process of this node left in the directory, and start the client.

    Raises:
        WalCorruptError, JournalIdentityError: the log cannot be used; the message gives the remedy.
        BlockingIOError: another process has locked the directory.
    """
    wal = await FileWal.open(
        runtime.disk,
        directory,
        identity=_wal_identity(node.session.cluster_id, node.node_id),
        settings=settings,
        telemetry=runtime.telemetry,
    )
    streams = await StreamClient.start(
        runtime=runtime,
        store=ports.store,
        wal=wal,
        streams=ports.streams,
        objects=ports.objects,
        settings=settings,
        tasks=tasks,
    )
    report = streams.recovery
    LOG.info(
        "recovery took %d ms: %d records, %d bytes of %d streams uploaded from the write-ahead log; %d"
        " records had been uploaded earlier",
        report.duration_ms,
        report.records,
        report.bytes,
        report.streams,
        report.skipped_committed,
    )
    return streams


async def start_on_store(
    runtime: Runtime,
    settings: StorageSettings,
    ports: StoragePorts,
    condition: Condition,
    tasks: BackgroundTasks,
) -> StreamClient:
    """Open the log of this process's epoch in the store; logs of earlier epochs are not read.

    Raises:
        StorageFailedError: the epoch has ended already.
    """
    wal = await ObjectWal.open(
        store=ports.store,
        name=await ports.wals.open_wal(),
        manager=ports.wals,
        settings=settings,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        tasks=tasks,
        condition_proven=condition is Condition.PROVEN,
    )
    return await StreamClient.start(
        runtime=runtime,
        store=ports.store,
        wal=wal,
        streams=ports.streams,
        objects=ports.objects,
        settings=settings,
        tasks=tasks,
        recover=False,
    )


def _wal_identity(cluster_id: str, node_id: NodeId) -> bytes:
    """Return 16 bytes that identify the owner of a write-ahead log, so that a start refuses the log of
    another node or cluster.
    """
    return hashlib.blake2b(f"{cluster_id}/{node_id}".encode(), digest_size=16).digest()
