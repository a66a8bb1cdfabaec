"""Check of manual replica assignments, with Kafka's messages
(org.apache.kafka.controller.ReplicationControlManager).

The controller ignores the assignment when it places partitions (docs/compatibility.md), but named
brokers must exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ponor_kafka.errors import ErrorCode

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topics import Topics


def check_replicas(broker_ids: Sequence[int], topics: Topics) -> None:
    """Check the replicas of one partition.

    Raises:
        PartitionError: INVALID_REPLICA_ASSIGNMENT.
    """
    problem = None
    if not broker_ids:
        problem = "an empty replica list."
    for broker_id, times in sorted(Counter(broker_ids).items()):
        if times > 1:
            problem = f"the broker {broker_id} more than once."
        elif topics.broker(broker_id) is None:
            problem = f"broker {broker_id}, but no such broker is registered."
        if problem is not None:
            break
    if problem is not None:
        raise PartitionError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {problem}"
        )
