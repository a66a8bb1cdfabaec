"""What is wrong with stored batches, in words that lead to the place.

What lives here: the one error that decoding raises, and the words for rules that only a reader of whole partitions has; a batch's own are
`ponor_kafka`'s. Nothing is decided here.
"""

from __future__ import annotations

from ponor_kafka.errors import KafkaWireError

from ponor_spark.errors import StoredDataError


class CorruptBatchError(StoredDataError):
    """A batch, or the record of a stream that it lies in, breaks a rule. Names topic, partition, Kafka offset and the rule."""


def corrupt(topic: str, partition: int, offset: int, rule: str) -> CorruptBatchError:
    """The error for the batch whose first offset is `offset`."""
    return CorruptBatchError(f"topic {topic}, partition {partition}, offset {offset}: {rule}")


def timestamp_too_large(index: int, timestamp_ms: int) -> KafkaWireError:
    """Spark's timestamps count microseconds in 64 bits; Kafka's count milliseconds."""
    return KafkaWireError(
        f"record {index} has the timestamp {timestamp_ms} ms, which has no place among Spark's timestamps; choose columns without `timestamp`"
    )
