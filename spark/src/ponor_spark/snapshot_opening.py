"""Opening a snapshot for a DataFrame, and giving it back early: one connection each.

What lives here: the two calls that need options alone. A stream keeps a `ClusterReader` instead.
"""

from __future__ import annotations

from contextlib import suppress

from ponor_spark.cluster import ClusterReader, find_cluster
from ponor_spark.errors import PonorSparkError
from ponor_spark.options import Options
from ponor_spark.snapshot import Snapshot
from ponor_spark.tail import with_tails


def open_snapshot(options: Options) -> Snapshot:
    """Lease what the options name; the lease lives for `snapshotTtl`, or longer where a keeper renews it (`lease_keeper`).

    Raises:
        PonorSparkError: the cluster does not answer, or a topic is missing.
    """
    with ClusterReader(find_cluster(options.cluster)) as cluster:
        return cluster.open_snapshot(
            options.topics, ttl_ms=options.snapshot_ttl_ms, read_committed=options.read_committed
        )


def open_snapshot_with_tails(options: Options) -> Snapshot:
    """The same with the ends of now where the options ask for the tail. Where brokers do not tell them no lease is left, which a keeper would renew for as long as the driver lives.

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
    """End the lease now; one that is over is no error.

    Raises:
        ClusterUnreachableError: nobody answers.
    """
    with ClusterReader(find_cluster(options.cluster)) as cluster:
        cluster.close_lease(snapshot.lease_id)
