"""Check of records written by `paced` producers: every number once, in order, at its acknowledged offset."""

from __future__ import annotations

from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.e2e.load.paced import NUMBER_BYTES, Paced
from tests.e2e.load.readers import watermarks

FILL_RECORD_BYTES: Final = 100_000
READ_S_MAX: Final = 120.0


def fill(bootstrap: str, topic: str, size_bytes: int, partition: int = 0) -> None:
    """Write some bytes of arbitrary content at full speed."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "batch.size": 1_000_000,
            "linger.ms": 20,
            "log_level": 2,
        }
    )
    failures: list[str] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    value = bytes(FILL_RECORD_BYTES)
    for _ in range(-(-size_bytes // FILL_RECORD_BYTES)):
        while True:
            try:
                producer.produce(topic, value=value, partition=partition, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(300) == 0, "the fill was not acknowledged"
    assert not failures, failures[0]


def judge_numbered(bootstrap: str, topic: str, running: Paced) -> None:
    """Read and check the producer's records, and nothing before them."""
    acknowledged = {row.number: row.offset for row in running.acknowledgements}
    first = min((offset for offset in acknowledged.values() if offset >= 0), default=OFFSET_BEGINNING)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True, "log_level": 2}
    )
    partition = TopicPartition(topic, running.load.partition, first)
    _, end = watermarks(consumer, topic, running.load.partition)
    consumer.assign([partition])
    expected = 0
    offset = first
    while offset + 1 < end and expected < len(acknowledged):
        message = consumer.poll(READ_S_MAX)
        assert message is not None, f"{running.family}: no more records after offset {offset}"
        if message.error() is not None:
            break
        offset = message.offset() or 0
        value = message.value()
        assert value is not None
        number = int.from_bytes(value[:NUMBER_BYTES], "big")
        assert number == expected, (
            f"{running.family}: record {number} at offset {offset}, expected {expected}"
        )
        place = acknowledged[number]
        assert place in {offset, -1}, (
            f"{running.family}: {number} was acknowledged at {place}, is at {offset}"
        )
        expected += 1
    consumer.close()
    assert expected == len(acknowledged), f"{running.family}: {len(acknowledged) - expected} records are lost"
