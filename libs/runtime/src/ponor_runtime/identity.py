"""Typed ids and their bit layout.

Ids are unique across clusters, so that two clusters can share a bucket and transfer ownership by metadata
alone (docs/architecture.md, "Identity").

Stream, object and producer ids are int64 = `0 | cluster ordinal (14 bits) | sequence (49 bits)`. Node ids are
int32 below 2^30 = `cluster ordinal (14 bits) << 16 | number (16 bits)`. Ordinal 0 is reserved: a configured
node id below 2^16 is a bare number, and the node adds the ordinal of its cluster.
"""

from __future__ import annotations

import base64
from typing import Final, NewType
from uuid import UUID

StreamId = NewType("StreamId", int)
ObjectId = NewType("ObjectId", int)
ProducerId = NewType("ProducerId", int)
NodeId = NewType("NodeId", int)
NodeEpoch = NewType("NodeEpoch", int)
StreamEpoch = NewType("StreamEpoch", int)
"""Also the leader epoch of a partition: the two are equal whenever a stream accepts appends."""
ClusterOrdinal = NewType("ClusterOrdinal", int)
TenantId = NewType("TenantId", str)
DEFAULT_TENANT: Final = TenantId("")

CLUSTER_ORDINAL_BITS: Final = 14
SEQUENCE_BITS: Final = 49
NODE_NUMBER_BITS: Final = 16
CLUSTER_ORDINAL_MAX: Final = (1 << CLUSTER_ORDINAL_BITS) - 1
UNKNOWN_ORDINAL: Final = ClusterOrdinal(0)
SEQUENCE_MAX: Final = (1 << SEQUENCE_BITS) - 1
NODE_NUMBER_MAX: Final = (1 << NODE_NUMBER_BITS) - 1
NODE_ID_BOUND: Final = 1 << (CLUSTER_ORDINAL_BITS + NODE_NUMBER_BITS)


def compose_id(ordinal: ClusterOrdinal, sequence: int) -> int:
    """Build a stream, object or producer id.

    Raises:
        ValueError: a part is out of range.
    """
    if not 0 <= ordinal <= CLUSTER_ORDINAL_MAX:
        raise ValueError(f"cluster ordinal {ordinal} is not within 0..{CLUSTER_ORDINAL_MAX}")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ValueError(f"sequence {sequence} is not within 0..{SEQUENCE_MAX}")
    return (ordinal << SEQUENCE_BITS) | sequence


def cluster_of_id(composed: int) -> ClusterOrdinal:
    """Cluster that created a stream, object or producer id."""
    assert composed >= 0
    return ClusterOrdinal(composed >> SEQUENCE_BITS)


def compose_node_id(ordinal: ClusterOrdinal, number: int) -> NodeId:
    """Build a node id. The result is below 2^30 because Kafka clients and tools expect small ids.

    Raises:
        ValueError: a part is out of range.
    """
    if not 0 <= ordinal <= CLUSTER_ORDINAL_MAX:
        raise ValueError(f"cluster ordinal {ordinal} is not within 0..{CLUSTER_ORDINAL_MAX}")
    if not 0 <= number <= NODE_NUMBER_MAX:
        raise ValueError(f"node number {number} is not within 0..{NODE_NUMBER_MAX}")
    return NodeId((ordinal << NODE_NUMBER_BITS) | number)


def cluster_of_node(node_id: NodeId) -> ClusterOrdinal:
    """Cluster of a node id."""
    assert 0 <= node_id < NODE_ID_BOUND
    return ClusterOrdinal(node_id >> NODE_NUMBER_BITS)


def number_of_node(node_id: NodeId) -> int:
    """Part of a node id that is unique within its cluster."""
    assert 0 <= node_id < NODE_ID_BOUND
    return node_id & NODE_NUMBER_MAX


def node_id_in(ordinal: ClusterOrdinal, node_id: NodeId) -> NodeId:
    """Add the cluster ordinal to a bare node number; return a complete node id unchanged."""
    return compose_node_id(ordinal, node_id) if cluster_of_node(node_id) == UNKNOWN_ORDINAL else node_id


def uuid_text(uuid: UUID) -> str:
    """Return a UUID in Kafka's format: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def uuid_of_text(text: str) -> UUID:
    """Return the UUID of a text in Kafka's format.

    Raises:
        ValueError: the text is malformed.
    """
    return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))
