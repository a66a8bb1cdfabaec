"""Audit of a topic, the driver's side: plan a snapshot, let executors verify every part, merge and judge.

The job audits the offsets in the committed objects, restricted by the options, under one lease; consumers
read the same offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ponor_kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

from ponor_spark.errors import ClusterUnreachableError, OptionError, PonorSparkError
from ponor_spark.jobs.audit.consumer_view import consume
from ponor_spark.jobs.audit.findings import PartitionFindings, added_up
from ponor_spark.jobs.audit.split_audit import audit_split
from ponor_spark.jobs.session import need
from ponor_spark.jobs.topic import TopicSource
from ponor_spark.kafka_client import NoBrokerError, ask_first
from ponor_spark.offsets import OffsetRange, batch_ranges
from ponor_spark.options import Options, Tail
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot import Snapshot
from ponor_spark.snapshot_opening import close_snapshot, open_snapshot
from ponor_spark.split import Split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC_RESOURCE: Final = 2
DESCRIBE_CONFIGS_VERSION: Final = 4
CLEANUP_POLICY: Final = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class Audited:
    """A partition, the audited range, and the findings; `consumer_rows` if a consumer also read it."""

    range: OffsetRange
    findings: PartitionFindings
    consumer_rows: int | None = None


def check_source(source: TopicSource, *, against_broker: bool) -> Options:
    """Return the source's options, if they can be audited.

    Raises:
        PonorSparkError: the options cannot be audited, or a package is missing.
    """
    options = source.parsed(streaming=False)
    if options.tail is Tail.BROKER:
        raise OptionError(
            "tail: verify checks objects only; remove the option, or use --against-broker to compare with the"
            " brokers"
        )
    if against_broker:
        need("confluent_kafka", "audit", "--against-broker")
    return options


def audit(spark: SparkSession, source: TopicSource, *, against_broker: bool = False) -> list[Audited]:
    """Verify the topic, partition by partition.

    Raises:
        PonorSparkError: an error of options, cluster or lease. Errors in the data are findings.
    """
    options = check_source(source, against_broker=against_broker)
    snapshot = open_snapshot(options)
    try:
        ranges = batch_ranges(snapshot, options)
        # If two splits shared a batch, both would count it.
        splits: list[Any] = plan(snapshot, ranges, PushedFilters(), options, shares_blocks=False)
        assert all(isinstance(split, Split) for split in splits), (
            "the options exclude tails, so every split reads objects"
        )
        found = added_up(_on_executors(spark, splits, with_digest=against_broker))
        audited = [_judged(each, found, snapshot, options) for each in ranges]
        return _compared(audited, snapshot, options) if against_broker else audited
    finally:
        close_snapshot(snapshot, options)


def _on_executors(
    spark: SparkSession, splits: Sequence[Split], *, with_digest: bool
) -> list[PartitionFindings]:
    if not splits:
        return []
    tasks = spark.sparkContext.parallelize(splits, len(splits))
    return list(tasks.flatMap(lambda split: audit_split(split, with_digest=with_digest)).collect())


def _judged(
    wanted: OffsetRange, found: dict[tuple[str, int], PartitionFindings], snapshot: Snapshot, options: Options
) -> Audited:
    findings = found.get((wanted.topic, wanted.partition)) or PartitionFindings(
        wanted.topic, wanted.partition
    )
    # Query the brokers only if the findings depend on the topic's cleanup.policy.
    compacted = bool(findings.holes) and is_compacted(
        wanted.topic, snapshot.brokers or options.cluster.bootstrap
    )
    findings.conclude(wanted.start_offset, wanted.end_offset, compacted=compacted)
    return Audited(wanted, findings)


def is_compacted(topic: str, brokers: Sequence[str]) -> bool:
    """Return whether the topic's cleanup.policy includes compact.

    Raises:
        ClusterUnreachableError: no broker answers; the objects do not contain this setting.
    """
    request = DescribeConfigsRequest([DescribeConfigsResource(TOPIC_RESOURCE, topic, [CLEANUP_POLICY])])
    try:
        answer = ask_first(
            brokers,
            lambda connection: connection.call(request, DESCRIBE_CONFIGS_VERSION, DescribeConfigsResponse),
        )
    except NoBrokerError as error:
        raise ClusterUnreachableError(
            f"kafka.bootstrap.servers: topic {topic} lacks offsets, and no broker answered whether the"
            f" topic is compacted ({error}); verify again when a broker answers"
        ) from error
    return any("compact" in (config.value or "") for result in answer.results for config in result.configs)


def _compared(audited: Sequence[Audited], snapshot: Snapshot, options: Options) -> list[Audited]:
    brokers = options.cluster.bootstrap or snapshot.brokers
    if not brokers:
        raise PonorSparkError(
            "kafka.bootstrap.servers: the consumer needs a broker, and none is known; set this option"
        )
    isolation = "read_committed" if options.read_committed else "read_uncommitted"
    seen = consume(brokers, [each.range for each in audited], {"isolation.level": isolation})
    compared = []
    for each in audited:
        findings, of_consumer = each.findings, seen[each.range.topic, each.range.partition]
        if findings.rows != of_consumer.rows:
            findings.problem(
                f"{findings.name}: the objects contain {findings.rows} rows, but a consumer reads"
                f" {of_consumer.rows}"
            )
        elif findings.digest != of_consumer.digest:
            findings.problem(
                f"{findings.name}: a consumer reads as many rows as the objects contain, {findings.rows}, but"
                " with other contents"
            )
        compared.append(Audited(each.range, findings, of_consumer.rows))
    return compared
