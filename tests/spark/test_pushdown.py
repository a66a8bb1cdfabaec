"""Filters in the source skip objects and never rows, despite the peculiarities of Spark's interface
for Python sources.

One test per peculiarity: the setting for pushdown that fails queries, empty plans, filters that
never arrive, the size and schema of Arrow batches, several actions on one DataFrame, time zones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from ponor_spark.batch_reader import PonorBatchReader, PushingBatchReader
from ponor_spark.offsets import batch_ranges
from ponor_spark.option_values import INT64_MAX
from ponor_spark.options import Pushdown, parse_options
from ponor_spark.planning import plan
from ponor_spark.pushdown import INT64_MIN, PushedFilters
from ponor_spark.registration import PUSHDOWN_SETTING
from ponor_spark.snapshot import Lease, Snapshot
from ponor_spark.source import pushes
from ponor_spark.spark_api import DataSource, DataSourceReader, InputPartition
from ponor_spark.split import ObjectRun, Split, TailSplit
from ponor_spark.split_reading import read_split
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThanOrEqual,
    In,
    StringContains,
)
from pyspark.sql.pandas.types import to_arrow_schema
from s3stream.objects.format import BlockEntry

from tests.spark.kafka_rows import KafkaRow, assorted, consumed, create_topic, produce, spark_rows
from tests.spark.topics_cluster import TopicsCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 2
START_MS = 1_700_000_000_000
UPLOADS = 3
EACH = 200


@pytest.fixture(scope="module")
def pushed(topics: TopicsCluster) -> str:
    """A topic in three uploads, 10 ms between records, with keys and values of all kinds."""
    create_topic(topics.kafka, "pushed", PARTITIONS)
    for number in range(UPLOADS):
        start_ms = START_MS + number * EACH * 10
        produce(topics.kafka, "pushed", assorted(EACH, PARTITIONS, seed=number, start_ms=start_ms), "lz4")
        topics.until_in_objects("pushed")
    return "pushed"


@pytest.fixture(scope="module")
def seen(topics: TopicsCluster, pushed: str) -> list[KafkaRow]:
    return consumed(topics.kafka, pushed)


@contextmanager
def setting(topics: TopicsCluster, value: str, name: str = PUSHDOWN_SETTING) -> Iterator[None]:
    conf = topics.spark.conf
    before = conf.get(name)
    conf.set(name, value)
    try:
        yield
    finally:
        conf.set(name, before)


CASES: list[tuple[str, Callable[[KafkaRow], bool]]] = [
    ("offset >= 250", lambda row: row.offset >= 250),
    ("offset > 20 AND offset <= 40 AND partition = 1", lambda row: 20 < row.offset <= 40 and row.partition == 1),  # noqa: E501
    ("offset IN (0, 7, 299)", lambda row: row.offset in {0, 7, 299}),
    ("offset = 123456", lambda _: False),
    ("offset < 3 OR partition = 1", lambda row: row.offset < 3 or row.partition == 1),
    ("NOT offset < 290", lambda row: row.offset >= 290),
    ("topic = 'pushed'", lambda _: True),
    ("topic = 'another'", lambda _: False),
    ("topic LIKE 'push%' AND partition != 0", lambda row: row.partition == 1),
    ("timestamp >= '2023-11-14 22:13:22' AND timestamp < '2023-11-14 22:13:24.005'",
     lambda row: START_MS + 2_000 <= row.timestamp_ms < START_MS + 4_005),
    ("timestamp = '2023-11-14 22:13:21.000'", lambda row: row.timestamp_ms == START_MS + 1_000),
    ("key IS NULL AND offset < 100", lambda row: row.key is None and row.offset < 100),
    ("length(value) > 500", lambda row: row.value is not None and len(row.value) > 500),
]  # fmt: skip


MODES = [
    *(("on", *case) for case in CASES),
    *(("off by the setting", *case) for case in CASES[1:4]),
    *(("off by the option", *case) for case in CASES[1:3]),
]


@pytest.mark.parametrize(("pushdown", "condition", "wanted"), MODES, ids=[f"{m[0]}: {m[1]}" for m in MODES])
def test_filters_select_exactly_the_matching_rows(
    topics: TopicsCluster,
    pushed: str,
    seen: list[KafkaRow],
    pushdown: str,
    condition: str,
    wanted: Callable[[KafkaRow], bool],
) -> None:
    option = {"pushdown": "off" if pushdown == "off by the option" else "on"}
    with setting(topics, "false" if pushdown == "off by the setting" else "true"):
        frame = topics.load(pushed, includeHeaders=True, **option).where(condition)
        assert spark_rows(frame.collect()) == [row for row in seen if wanted(row)]


def test_literals_and_rows_use_the_session_time_zone(
    topics: TopicsCluster, pushed: str, seen: list[KafkaRow]
) -> None:
    """22:13:22 in UTC is 07:13:22 of the next day in Tokyo: the same rows in any session time zone."""
    wanted = [row for row in seen if row.timestamp_ms >= START_MS + 2_000]
    with setting(topics, "Asia/Tokyo", "spark.sql.session.timeZone"):
        frame = topics.load(pushed, includeHeaders=True).where("timestamp >= '2023-11-15 07:13:22'")
        assert frame.count() == len(wanted)
        first = frame.agg(f.date_format(f.min("timestamp"), "yyyy-MM-dd HH:mm:ss")).first()
        assert first is not None
        assert first[0] == "2023-11-15 07:13:22"


def test_a_filter_reads_fewer_objects(topics: TopicsCluster, pushed: str) -> None:
    """Partitions of the plan are splits: skipped objects have none, and a block is shared by at
    most as many splits as it has offsets.
    """
    with setting(topics, "true"):
        assert topics.load(pushed, minPartitions=6, pushdown="on").rdd.getNumPartitions() >= 6
        assert (
            topics.load(pushed, minPartitions=6, pushdown="on")
            .where("partition = 1 AND offset < 3")
            .rdd.getNumPartitions()
            == 3
        )
        assert topics.load(pushed, pushdown="on").where("offset < 0").collect() == []


def test_blocks_beyond_a_timestamp_bound_are_not_read(
    topics: TopicsCluster, pushed: str, seen: list[KafkaRow]
) -> None:
    """Clients compressed the batches, brokers validated them, uploads and perhaps a compaction
    wrote the indexes.
    """
    options = parse_options(topics.options(pushed), streaming=False)
    snapshot = topics.snapshot(pushed)
    ranges = batch_ranges(snapshot, options)

    def blocks(to_ms: int) -> list[tuple[int, BlockEntry]]:
        filters = PushedFilters(time_range_ms=(INT64_MIN, to_ms))
        runs = [run for split in plan(snapshot, ranges, filters, options) for run in runs_of(split)]
        return [(run.clip.partition, entry) for run in runs for entry in run.blocks()]

    everything = blocks(INT64_MAX - 1)
    for partition, entry in everything:
        times = [
            row.timestamp_ms
            for row in seen
            if row.partition == partition and entry.start_offset <= row.offset < entry.end_offset
        ]
        assert (entry.min_timestamp_ms, entry.max_timestamp_ms) == (min(times), max(times))
    bounds = sorted(entry.min_timestamp_ms for _, entry in everything)
    assert blocks(bounds[-1]) == [each for each in everything if each[1].min_timestamp_ms < bounds[-1]]
    assert blocks(bounds[0]) == []


def runs_of(split: Split | TailSplit) -> list[ObjectRun]:
    assert isinstance(split, Split)
    return [run for run in split.runs if isinstance(run, ObjectRun)]


def test_several_actions_use_one_snapshot(topics: TopicsCluster) -> None:
    create_topic(topics.kafka, "growing", PARTITIONS)
    produce(topics.kafka, "growing", assorted(40, PARTITIONS, seed=1))
    topics.until_in_objects("growing")
    frame = topics.load("growing")
    assert frame.count() == 40
    produce(topics.kafka, "growing", assorted(60, PARTITIONS, seed=2))
    topics.until_in_objects("growing")
    assert frame.count() == 40
    assert frame.where("offset >= 20").count() == 0
    assert frame.count() == 40
    assert topics.load("growing").count() == 100
    assert frame.union(topics.load("growing")).count() == 140


class SharedPlan(DataSource):
    """A test source: rows 0 to 3, each in its own partition, which an equality filter skips."""

    @classmethod
    def name(cls) -> str:
        return "shared-plan"

    def schema(self) -> str:
        return "a int"

    def reader(self, schema: Any) -> DataSourceReader:
        return SharedPlanReader()


class SharedPlanReader(DataSourceReader):
    def __init__(self) -> None:
        self.only: int | None = None

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        self.only = next((each.value for each in filters if isinstance(each, EqualTo)), None)
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(4) if self.only in {None, number}]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": pa.array([partition.value], pa.int32())})


def test_spark_keeps_one_plan_for_a_dataframe_with_any_filter(spark: SparkSession) -> None:
    """A fault of Spark 4.2 that no source can detect, and the reason why `pushdown=auto` pushes
    nothing there. If this fails, this Spark has no such fault.
    """
    spark.dataSource.register(SharedPlan)
    spark.conf.set(PUSHDOWN_SETTING, "true")
    try:
        frame = spark.read.format("shared-plan").load()
        assert frame.where("a = 1").count() == 1
        assert frame.count() == 1, "the DataFrame without a filter has four rows"
        anew = spark.read.format("shared-plan").load()
        assert anew.count() == 4
    finally:
        spark.conf.set(PUSHDOWN_SETTING, "false")


def reader_of(kind: type[PonorBatchReader]) -> PonorBatchReader:
    """A reader as in executors: without a snapshot, but able to answer questions about filters."""
    options = parse_options({"subscribe": "t", "controllers": "127.0.0.1:1"}, streaming=False)
    nothing = Snapshot("cluster", 0, Lease(1, "test", 1, 0, 0, 0), "file:///nowhere", ())
    return kind(nothing, options, ("offset",))


def test_spark_detects_pushdown_only_when_it_calls_the_reader() -> None:
    """The check of pyspark's planning worker, and the call of its pushdown worker."""
    reader = reader_of(PushingBatchReader)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    plain = reader_of(PonorBatchReader)
    assert getattr(plain.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    filters = [
        GreaterThanOrEqual(("offset",), 5),
        StringContains(("topic",), "x"),
        EqualTo(("value",), b"1"),
        In(("offset",), (1, 9)),
    ]
    residual = list(reader.pushFilters(list(filters)))
    assert [id(each) for each in residual] == [id(each) for each in filters[1:]]
    assert list(plain.pushFilters(filters)) == filters


def test_with_shared_plans_filters_are_pushed_only_on_request(topics: TopicsCluster, pushed: str) -> None:
    versions = {"4.1.1": False, "4.2.0": False, "4.3.0": True, "5.0.0": True}
    for version, sound in versions.items():
        assert pushes(Pushdown.AUTO, version) == sound
        assert pushes(Pushdown.ON, version)
        assert not pushes(Pushdown.OFF, version)
    with setting(topics, "true"):
        frame = topics.load(pushed)
        assert frame.count() == UPLOADS * EACH
        assert frame.where("offset < 10").count() == 20
        assert frame.count() == UPLOADS * EACH
        assert frame.where("offset < 10").union(frame.where("offset >= 290")).count() == 40


def test_an_empty_plan_is_one_partition_without_a_split() -> None:
    assert list(reader_of(PonorBatchReader).read(InputPartition(None))) == []


def test_batches_are_small_and_have_the_derived_schema(topics: TopicsCluster, pushed: str) -> None:
    """Spark compares the first batch's schema with its own; offsets of binary columns have 31 bits."""
    frame = topics.load(pushed, includeHeaders=True)
    options = parse_options(topics.options(pushed), streaming=False)
    snapshot = topics.snapshot(pushed)
    splits = plan(snapshot, batch_ranges(snapshot, options), PushedFilters(), options)
    batches = [batch for split in splits for batch in read_split(split, frame.columns)]
    expected = to_arrow_schema(frame.schema, timezone="UTC")
    assert batches
    assert all(batch.schema.equals(expected) for batch in batches)
    assert all(batch.nbytes < 64 << 20 for batch in batches)
