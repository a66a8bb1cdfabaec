"""The cluster itself: identity, feature levels, tenants, and the first epoch of each incarnation."""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal, TenantId

from ponor_metadata.tables.columns import BOOLEANS, INTEGERS, NATURALS, TEXTS
from ponor_metadata.tables.schema import FIRST_FIELD, Noun, Schema, Section, View

METADATA_LEVEL: Final = "metadata.level"
"""The feature whose level determines which kinds of records the log may contain
(docs/design/consensus.md#quorum-operations)."""
LATEST_LEVEL: Final = 1
"""The highest level that this build supports.

A release that adds record kinds raises this constant. A process stops at a record of an unknown kind
(`image.apply`).
"""
RECOVERIES_MAX: Final = 127
CONTROLLER_BITS: Final = 6
EPOCH_BITS: Final = 18
"""Bits of the epochs in one run. Leader epochs are int32 in Kafka's protocol, so there are 2^13 runs of 2^18
epochs.

A lost part of the log cannot contain 2^18 registrations of one node, or 2^18 elections of one partition.
"""
INCARNATION_MAX: Final = (1 << 31) - 1


class ClusterRow(NamedTuple):
    """The identity of this cluster, and state that concerns the whole cluster. At most one row.

    `incarnation` rises with each forced recovery (`next_incarnation`). While `incarnation_unconfirmed` is
    set, nothing may be deleted from the store. Until `stop_until_ms` (cluster time) the whole cluster is
    being stopped, so drains and failovers do not begin.
    """

    cluster_id: str
    cluster_ordinal: ClusterOrdinal
    namespace: str
    incarnation: int = 0
    incarnation_unconfirmed: bool = False
    stop_until_ms: int = 0
    balancer_paused: bool = False


class FeatureRow(NamedTuple):
    """A finalized feature level."""

    name: str
    level: int


class TenantRow(NamedTuple):
    """A tenant, and the cluster.id that its Kafka clients see."""

    tenant_id: TenantId
    cluster_id: str


CLUSTERS: Final[Schema[str, ClusterRow]] = Schema(
    "clusters",
    ClusterRow,
    FIRST_FIELD,
    (Section(1, (TEXTS, INTEGERS, TEXTS, NATURALS, BOOLEANS, INTEGERS, BOOLEANS)),),
)
FEATURES: Final[Schema[str, FeatureRow]] = Schema(
    "features", FeatureRow, FIRST_FIELD, (Section(2, (TEXTS, INTEGERS)),)
)
TENANTS: Final[Schema[TenantId, TenantRow]] = Schema(
    "tenants", TenantRow, FIRST_FIELD, (Section(3, (TEXTS, TEXTS)),)
)


def cluster_of(view: View) -> ClusterRow | None:
    """Return the cluster's row; None before the cluster was formatted."""
    return next(iter(view[CLUSTERS]), None)


def require_cluster(view: View) -> ClusterRow:
    """Return the cluster's row.

    Raises:
        AssertionError: the cluster was not formatted.
    """
    cluster = cluster_of(view)
    assert cluster is not None, "the first record must be ClusterFormatted"
    return cluster


def level_of(view: View, name: str = METADATA_LEVEL) -> int:
    """Return the finalized level of a feature; 0 if it has none."""
    row = view[FEATURES].get(name)
    return 0 if row is None else row.level


def epoch_floor(view: View) -> int:
    """Return the first epoch of the present incarnation, for nodes and for partition leaders.

    A forced recovery may lose a part of the log in which epochs were assigned. Each incarnation therefore has
    a run of 2^18 epochs, and every epoch that is assigned in the incarnation is at least the first epoch of
    this run.
    """
    return run_of(require_cluster(view).incarnation) << EPOCH_BITS


def next_incarnation(present: int, controller: int, drawn: int) -> int:
    """Return the incarnation of a forced recovery, or a number above `INCARNATION_MAX` if none is left.

    The number consists of the number of recoveries (7 bits), the controller's number (6 bits) and a random
    number (18 bits). Two recoveries of the same log on directories of different controllers assign different
    ids and epochs (`run_of`). Two recoveries on copies of one directory get different incarnations.

    Args:
        present: the incarnation in the log of the controller.
        controller: number of the controller on whose directory the recovery runs.
        drawn: random, below 2^18.
    """
    assert 0 <= drawn < 1 << EPOCH_BITS
    recoveries = run_of(present) >> CONTROLLER_BITS
    run = (recoveries + 1) << CONTROLLER_BITS | controller % (1 << CONTROLLER_BITS)
    return run << EPOCH_BITS | drawn


def run_of(incarnation: int) -> int:
    """Return the number of the incarnation's run of ids and epochs, below 2^13.

    Incarnations up to `RECOVERIES_MAX` were assigned by earlier versions, which only counted recoveries.
    """
    return incarnation >> EPOCH_BITS or incarnation << CONTROLLER_BITS


def cluster_formatted(view: View, record: records.ClusterFormatted) -> None:
    """Create the cluster's row.

    Only batches without records (the opening entries of terms) may precede this record.
    """
    assert len(view[CLUSTERS]) == 0, "the cluster is already formatted"
    assert 1 <= record.cluster_ordinal <= CLUSTER_ORDINAL_MAX, (
        f"cluster ordinal {record.cluster_ordinal} is not within 1..{CLUSTER_ORDINAL_MAX}"
    )
    view[CLUSTERS].put(
        ClusterRow(record.cluster_id, ClusterOrdinal(record.cluster_ordinal), record.namespace)
    )


def feature_level_set(view: View, record: records.FeatureLevelSet) -> None:
    """Raise a feature level. Levels never fall."""
    present = view[FEATURES].get(record.name)
    assert present is None or record.level > present.level, (
        f"the level of feature {record.name} does not rise"
    )
    view[FEATURES].put(FeatureRow(record.name, record.level))


def tenant_created(view: View, record: records.TenantCreated) -> None:
    """Create a tenant. Its cluster.id never changes."""
    tenant_id = TenantId(record.tenant_id)
    assert tenant_id not in view[TENANTS], f"tenant {tenant_id!r} already exists"
    view[TENANTS].put(TenantRow(tenant_id, record.cluster_id))


def cluster_stop_announced(view: View, record: records.ClusterStopAnnounced) -> None:
    """Announce a stop of the whole cluster. This replaces an earlier announcement.

    The announcement ends at a cluster time, without a further record.
    """
    cluster = require_cluster(view)
    assert record.until_ms >= 0, f"the end of the announced stop is negative: {record.until_ms}"
    view[CLUSTERS].put(cluster._replace(stop_until_ms=record.until_ms))


def balancer_paused(view: View, record: records.BalancerPaused) -> None:
    """Pause or resume the balancer."""
    view[CLUSTERS].put(require_cluster(view)._replace(balancer_paused=record.paused))


def _check(view: View) -> None:
    assert len(view[CLUSTERS]) == 1, "there is not exactly one cluster row"
    seen = [tenant.cluster_id for tenant in view[TENANTS]]
    assert len(set(seen)) == len(seen), "two tenants have the same cluster.id"


NOUN: Final = Noun(
    schemas=(CLUSTERS, FEATURES, TENANTS),
    rules=(cluster_formatted, feature_level_set, tenant_created, cluster_stop_announced, balancer_paused),
    check=_check,
)
