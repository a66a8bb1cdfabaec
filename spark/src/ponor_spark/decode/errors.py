"""Error of damaged stored batches, and the messages of rules across batches.

Messages of rules within a batch come from `ponor_kafka`.
"""

from __future__ import annotations

from ponor_kafka.errors import KafkaWireError

from ponor_spark.errors import StoredDataError


class CorruptBatchError(StoredDataError):
    """A batch, or its stream record, violates a rule. Names topic, partition, Kafka offset and the rule."""


def corrupt(topic: str, partition: int, offset: int, rule: str) -> CorruptBatchError:
    """Return the error for the batch whose first offset is `offset`."""
    return CorruptBatchError(f"topic {topic}, partition {partition}, offset {offset}: {rule}")


def timestamp_too_large(index: int, timestamp_ms: int) -> KafkaWireError:
    """Return the error for a Kafka timestamp (ms) that does not fit into Spark's 64-bit microseconds."""
    return KafkaWireError(
        f"record {index} has the timestamp {timestamp_ms} ms, which is outside of the range of Spark's"
        " timestamps;"
        " choose columns without `timestamp`"
    )
