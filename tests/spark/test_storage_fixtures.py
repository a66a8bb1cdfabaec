"""Transactions and other batches that brokers do not write yet, put into objects by the test and
read by Spark: the rows equal those of a consumer with the same isolation level.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ponor_kafka.compression import Codec
from ponor_kafka.record_batch import BatchView
from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.options import parse_options
from ponor_spark.snapshot import SegmentSlice, Snapshot
from ponor_spark.source import PonorDataSource

from spark.tests.stored_batches import MS, Kept, Kind, Log, consumed
from spark.tests.stored_snapshots import TOPIC, Store, Written, partition_of
from tests.spark.kafka_rows import spark_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
STREAM = 7
FORMAT = "ponor-stored"


class StoredTopic(PonorDataSource):
    """The source with a snapshot that the test wrote."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        snapshot = Path(given.pop("snapshot"))
        self.options = options
        self._given = given
        self._not_for_batches = None
        parse_options(given, streaming=False)
        self._snapshot = pickle.loads(snapshot.read_bytes())

    @classmethod
    def name(cls) -> str:
        return FORMAT


def of(
    producer_id: int, *values: bytes, codec: Codec = Codec.NONE, committed: bool = True
) -> tuple[list[Kept], Kind]:
    """A batch of a producer, in a transaction."""
    records = [Kept(delta, MS + delta, b"key", value, (("h", b"1"),)) for delta, value in enumerate(values)]
    return records, Kind(codec, producer_id=producer_id, transactional=committed)


def marker(producer_id: int) -> tuple[list[Kept], Kind]:
    """The end marker of a transaction. Its type does not matter, because the list of aborted
    transactions decides.
    """
    return [Kept(0, MS, bytes(4), bytes(6))], Kind(producer_id=producer_id, transactional=True, control=True)


@pytest.fixture(scope="module")
def log() -> Log:
    """Overlapping transactions of two producers, one aborted, between plain records of the same
    producer and without a producer; a gap from compaction.
    """
    log = Log(start_offset=100, shift=60)
    log.add([Kept(0, MS, b"plain", b"0"), Kept(1, MS + 1, None, None)])
    log.add(*of(11, b"aborted 1", b"aborted 2", codec=Codec.ZSTD))
    log.add(*of(12, b"committed 1", codec=Codec.LZ4))
    log.add(*of(11, b"aborted 3"))
    log.drop(3)
    log.add(*marker(11))
    log.add(*of(11, b"committed 2", b"committed 3", codec=Codec.SNAPPY))
    log.add(*of(12, b"committed 4", codec=Codec.GZIP))
    log.add(*marker(12))
    log.add(*marker(11))
    log.add([Kept(0, MS + 9, b"plain", b"last")], Kind(append_time=MS + 99))
    return log


ABORTED = (AbortedRange(11, 102, 105),)


def stored(log: Log, directory: Path, *, cuts: int) -> Snapshot:
    """The log in this many objects."""
    store = Store(directory, block_bytes_max=200)
    records: list[Written] = []
    offset = log.start_offset - log.shift
    for batch, count in zip(log.batches, log.counts, strict=True):
        view = BatchView(memoryview(batch))
        records.append(Written(offset, count, view.max_timestamp, batch))
        offset += count
    size = -(-len(records) // cuts)
    for first in range(0, len(records), size):
        store.put((STREAM, records[first : first + size]))
    segment = SegmentSlice(STREAM, log.start_offset, log.end_offset, log.shift)
    return store.snapshot(partition_of([segment], aborted=ABORTED))


@pytest.mark.parametrize("cuts", [1, 4])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_read_as_by_a_consumer(
    spark: SparkSession, tmp_path: Path, log: Log, isolation: str, cuts: int
) -> None:
    spark.dataSource.register(StoredTopic)
    snapshot = tmp_path / "snapshot"
    snapshot.write_bytes(pickle.dumps(stored(log, tmp_path, cuts=cuts)))
    given = {
        "subscribe": TOPIC,
        "controllers": "127.0.0.1:1",
        "kafka.isolation.level": isolation,
        "includeHeaders": "true",
        "splitBytes": "64k",
    }
    frame = spark.read.format(FORMAT).options(**given, snapshot=str(snapshot)).load()
    rows = spark_rows(frame.collect())
    aborted = ABORTED if isolation == "read_committed" else ()
    seen = consumed(log.batches, Clip(TOPIC, 0, log.start_offset, log.end_offset), aborted)
    assert [(row.offset, row.key, row.value, row.timestamp_type) for row in rows] == [
        (row["offset"], row["key"], row["value"], row["timestampType"]) for row in seen
    ]
    assert [row.timestamp_ms for row in rows] == [row["timestamp"] // 1000 for row in seen]
    values = [row.value for row in rows]
    assert (b"aborted 3" in values) == (isolation == "read_uncommitted")
    assert b"committed 4" in values
    assert not any(value == bytes(6) for value in values), "control records never surface"
    clipped = frame.where("offset >= 106 AND offset < 110").collect()
    assert [row["offset"] for row in clipped] == [row.offset for row in rows if 106 <= row.offset < 110]
