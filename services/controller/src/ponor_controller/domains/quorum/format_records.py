"""The first batch of a new cluster's log: who it is.

What lives here: the records that an empty log begins with. Written once, by the first leader.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import LATEST_LEVEL, METADATA_LEVEL
from ponor_runtime.identity import DEFAULT_TENANT, ClusterOrdinal
from ponor_runtime.randomness import Randomness

from ponor_controller.consensus.members import Member, voters_set


def format_records(
    cluster_id: str, ordinal: ClusterOrdinal, randomness: Randomness, members: Sequence[Member] = ()
) -> list[records_pb2.Record]:
    """Cluster, feature level, default tenant and the quorum. The namespace of the cluster's objects is drawn here, so that no two clusters share a key."""
    formatted = records_pb2.ClusterFormatted(
        cluster_id=cluster_id, cluster_ordinal=ordinal, namespace=str(randomness.uuid())
    )
    level = records_pb2.FeatureLevelSet(name=METADATA_LEVEL, level=LATEST_LEVEL)
    tenant = records_pb2.TenantCreated(tenant_id=DEFAULT_TENANT, cluster_id=new_kafka_cluster_id(randomness))
    return [
        records_pb2.Record(cluster_formatted=formatted),
        records_pb2.Record(feature_level_set=level),
        records_pb2.Record(tenant_created=tenant),
        *([voters_set(members)] if members else []),
    ]


def new_kafka_cluster_id(randomness: Randomness) -> str:
    """A UUID as Kafka writes it: base64url without padding, 22 characters, and never with a dash in front."""
    while True:
        text = base64.urlsafe_b64encode(randomness.uuid().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka avoids it: tools would take it for an option
            return text
