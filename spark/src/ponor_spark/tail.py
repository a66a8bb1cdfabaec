"""`tail=broker`: read from brokers between the snapshot's committed end and an end fixed with the snapshot.

Objects end with the last committed upload. One fetch loop per partition continues at exactly this offset, so
that each row is read once, from an object or from a broker. The end is the leader's high watermark
(read_committed: the last stable offset) when the snapshot was opened; later records are excluded, however
long the query takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, Protocol

from ponor_kafka.messages.fetch import PartitionData
from ponor_kafka.record_batch import (
    BATCH_HEADER,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    TRANSACTIONAL_BIT,
)

from ponor_spark.errors import OptionError, StoredDataError
from ponor_spark.kafka_client import KafkaClient
from ponor_spark.options import Options, Tail
from ponor_spark.snapshot import PartitionSnapshot, Snapshot
from ponor_spark.split import TailSplit

EMPTY_ANSWERS_MAX: Final = 60
"""Maximum consecutive empty fetches before the end; each waits half a second at the broker."""


class BatchSink(Protocol):
    """Accepts record batches: `decode.BatchDecoder`."""

    def feed(self, batch: memoryview, base_offset: int) -> None:
        """Add one whole record batch with this base offset."""
        ...


def tail_ends(
    partitions: Sequence[PartitionSnapshot], *, brokers: Sequence[str], read_committed: bool
) -> dict[tuple[str, int], int]:
    """Return the current end of each (topic, partition) from its leader, for `Snapshot.with_tails`.

    Raises:
        PonorSparkError: the brokers do not answer, or a topic was recreated.
    """
    if not partitions:
        return {}
    with closing(KafkaClient(parse_addresses(brokers))) as client:
        return {
            (each.topic, each.partition): client.end_offset(
                each.topic, each.topic_id, each.partition, read_committed=read_committed
            )
            for each in partitions
        }


def with_tails(snapshot: Snapshot, options: Options) -> Snapshot:
    """Return the snapshot, with current end offsets if the options ask for the tail.

    Raises:
        PonorSparkError: as `tail_ends`.
    """
    if options.tail is Tail.COMMITTED:
        return snapshot
    brokers = options.cluster.bootstrap or snapshot.brokers
    return snapshot.with_tails(
        tail_ends(snapshot.partitions, brokers=brokers, read_committed=options.read_committed)
    )


def read_tail(split: TailSplit, sink: BatchSink) -> Iterator[None]:
    """Feed the split's batches to the sink; yield after each fetch, so that rows can be consumed.

    Raises:
        PonorSparkError: the brokers do not answer, or the offsets no longer exist.
    """
    clip = split.clip
    offset, empty = clip.start_offset, 0
    with closing(KafkaClient(parse_addresses(split.brokers))) as client:
        while offset < clip.end_offset:
            fetched = client.fetch(
                clip.topic, split.topic_id, clip.partition, offset, read_committed=split.read_committed
            )
            before = offset
            for batch, base_offset, next_offset in wanted_batches(fetched, clip.end_offset):
                if batch is not None:
                    sink.feed(batch, base_offset)
                offset = max(offset, next_offset)
            yield
            empty = empty + 1 if offset == before else 0
            if empty > EMPTY_ANSWERS_MAX:
                raise StoredDataError(
                    f"tail=broker: {clip.topic} {clip.partition}: the broker returned no records at offset"
                    f" {offset}, although the range ends at {clip.end_offset}; read with tail=committed, or"
                    " load() again"
                )


def wanted_batches(fetched: PartitionData, end_offset: int) -> Iterator[tuple[memoryview | None, int, int]]:
    """Yield the whole batches of an answer with base offset and next offset; None for control batches and
    aborted ones.

    An aborted transaction of a producer extends from the first offset in the answer to the producer's next
    control batch, as in a Kafka consumer (KIP-98).
    """
    assert isinstance(fetched.records, memoryview | bytes | None), (
        "the records of an answer must be in one buffer"
    )
    records = memoryview(fetched.records or b"")
    aborted = sorted((each.first_offset, each.producer_id) for each in fetched.aborted_transactions or ())
    aborting: set[int] = set()
    position = 0
    while len(records) - position >= HEADER_BYTES:
        base_offset, length, _, _, _, attributes, last_delta, _, _, producer_id, *_ = (
            BATCH_HEADER.unpack_from(records, position)
        )
        batch = records[position : position + LENGTH_PREFIX_BYTES + length]
        if len(batch) < LENGTH_PREFIX_BYTES + length or base_offset >= end_offset:
            return
        position += len(batch)
        while aborted and aborted[0][0] <= base_offset:
            aborting.add(aborted.pop(0)[1])
        is_control = bool(attributes & CONTROL_BIT)
        if is_control:
            aborting.discard(producer_id)
        is_aborted = bool(attributes & TRANSACTIONAL_BIT) and producer_id in aborting
        wanted = not (is_control or is_aborted)
        yield batch if wanted else None, base_offset, base_offset + last_delta + 1


def parse_addresses(brokers: Sequence[str]) -> list[tuple[str, int]]:
    """Parse host and port of each broker.

    Raises:
        OptionError: an address is not HOST:PORT, or there is none.
    """
    addresses: list[tuple[str, int]] = []
    for broker in brokers:
        host, colon, port = broker.strip().rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise OptionError(
                f"kafka.bootstrap.servers: {broker!r} is not HOST:PORT; give host:port,host:port"
            )
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise OptionError(
            "tail=broker needs kafka.bootstrap.servers: give host:port,host:port of some brokers"
        )
    return addresses
