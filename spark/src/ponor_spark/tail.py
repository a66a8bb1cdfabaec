"""`tail=broker`: what the brokers hold and no committed object does yet, from the snapshot's committed end to an end that was fixed with it.

Objects end where the last committed upload ended; behind that, one fetch loop per partition goes on at exactly this offset, so that a row is read
from an object or from a broker, never from both. The end is the high watermark (read_committed: the last stable offset) as the leader said when the
snapshot was opened: what is produced later is not part of it, however long the query takes.
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
"""Of fetches in a row that brought nothing although the end lies ahead; each waits half a second at the broker."""


class BatchSink(Protocol):
    """Takes record batches: `decode.BatchDecoder`."""

    def feed(self, batch: memoryview, base_offset: int) -> None:
        """One whole record batch, of this base offset."""
        ...


def tail_ends(
    partitions: Sequence[PartitionSnapshot], *, brokers: Sequence[str], read_committed: bool
) -> dict[tuple[str, int], int]:
    """Where (topic, partition) ends for its leader now: for `Snapshot.with_tails`.

    Raises:
        PonorSparkError: the brokers do not answer, or a topic is another one by now.
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
    """The snapshot with the ends of now where the options ask for the tail.

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
    """Feed the sink the batches that hold the split's offsets, one fetch a step; yields after each, so that rows can be taken.

    Raises:
        PonorSparkError: the brokers do not answer, or the offsets are not there any more.
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
                    f"tail=broker: {clip.topic} {clip.partition}: the broker returns nothing at offset {offset} of"
                    f" {clip.end_offset}; read with tail=committed, or load() again"
                )


def wanted_batches(fetched: PartitionData, end_offset: int) -> Iterator[tuple[memoryview | None, int, int]]:
    """Whole batches of an answer, with base offset and the offset behind: None for control batches and aborted ones.

    An aborted transaction of a producer reaches from the first offset that the answer names to the producer's next control batch, as a Kafka
    consumer has it (KIP-98).
    """
    assert isinstance(fetched.records, memoryview | bytes | None), "what was received lies in one piece"
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
    """Host and port of each broker.

    Raises:
        OptionError: one is not HOST:PORT, or there is none.
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
