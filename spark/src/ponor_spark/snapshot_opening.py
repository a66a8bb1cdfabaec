"""Open a snapshot for a DataFrame, or close it before its lease expires; each call opens its own connection.

A stream keeps a `ClusterReader` instead.
"""

from __future__ import annotations

from contextlib import suppress

from ponor_spark.cluster import ClusterReader, find_cluster
from ponor_spark.errors import PonorSparkError
from ponor_spark.options import Options
from ponor_spark.snapshot import Snapshot
from ponor_spark.tail import with_tails


def open_snapshot(options: Options) -> Snapshot:
    """Lease the topics of the options for `snapshotTtl`; the lease keeper may renew it.

    Raises:
        PonorSparkError: the cluster does not answer, or a topic is missing.
    """
    with ClusterReader(find_cluster(options.cluster)) as cluster:
        return cluster.open_snapshot(
            options.topics, ttl_ms=options.snapshot_ttl_ms, read_committed=options.read_committed
        )


def open_snapshot_with_tails(options: Options) -> Snapshot:
    """Open a snapshot, with current end offsets if the options ask for the tail. On failure, close the
    lease: otherwise the keeper would renew it until the driver exits.

    Raises:
        PonorSparkError: as `open_snapshot` and `tail_ends`.
    """
    snapshot = open_snapshot(options)
    try:
        return with_tails(snapshot, options)
    except BaseException:
        with suppress(PonorSparkError):
            close_snapshot(snapshot, options)
        raise


def close_snapshot(snapshot: Snapshot, options: Options) -> None:
    """End the lease now; no error if it has ended.

    Raises:
        ClusterUnreachableError: no controller answers.
    """
    with ClusterReader(find_cluster(options.cluster)) as cluster:
        cluster.close_lease(snapshot.lease_id)
