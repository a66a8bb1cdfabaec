"""Tests of options: the names and meanings of Spark's Kafka connector, and one-line errors that begin with
the option's name.
"""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.errors import OptionError, PonorSparkError, lease_over
from ponor_spark.option_values import offsets_json
from ponor_spark.options import (
    AtOffsets,
    AtTime,
    AtTimes,
    ClusterOptions,
    Edge,
    Options,
    Pushdown,
    Tail,
    parse_options,
)
from ponor_spark.topics import Assign, Subscribe, SubscribePattern

BASE = {"subscribe": "t", "kafka.bootstrap.servers": "a:1,b:2"}


def parse(*, streaming: bool = False, **changes: str) -> Options:
    return parse_options({**BASE, **changes}, streaming=streaming)


def test_a_kafka_users_options_are_taken_as_they_are() -> None:
    given = {
        "Subscribe": "one, two",
        "KAFKA.bootstrap.servers": "a:1,b:2",
        "startingOffsets": "earliest",
        "endingOffsets": '{"one": {"0": 5, "1": -1}, "two": {"0": 7}}',
        "failOnDataLoss": "false",
        "minPartitions": "10",
        "includeHeaders": "TRUE",
        "kafka.isolation.level": "read_committed",
        "kafka.group.id": "g",
        "kafka.max.poll.records": "5",
        "kafka.check.crcs": "true",
        "kafka.security.protocol": "plaintext",
        "kafkaConsumer.pollTimeoutMs": "500",
        "groupIdPrefix": "x",
    }
    found = parse_options(given, streaming=False)
    assert found.topics == Subscribe(("one", "two"))
    assert found.cluster == ClusterOptions(bootstrap=("a:1", "b:2"))
    assert found.start == Edge.EARLIEST
    assert found.end == AtOffsets({"one": {0: 5, 1: -1}, "two": {0: 7}}, "endingOffsets")
    assert (found.fail_on_data_loss, found.min_partitions, found.include_headers) == (False, 10, True)
    assert found.read_committed


def test_defaults_are_sparks() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (batch.start, batch.end, stream.start) == (Edge.EARLIEST, Edge.LATEST, Edge.LATEST)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert not batch.read_committed
    assert (batch.tail, batch.pushdown, batch.split_bytes) == (Tail.COMMITTED, Pushdown.AUTO, 64 << 20)
    assert batch.snapshot_ttl_ms == 3_600_000
    assert stream.max_trigger_delay_ms == 900_000


def test_timestamps_come_before_offsets_as_in_the_connector() -> None:
    found = parse(
        startingOffsets="earliest", startingOffsetsByTimestamp='{"t": {"0": 9}}', endingTimestamp="8"
    )
    assert found.start == AtTimes({"t": {0: 9}}, "startingOffsetsByTimestamp")
    assert found.end == AtTime(8, "endingTimestamp")
    assert parse(startingTimestamp="7", startingOffsetsByTimestamp='{"t": {"0": 9}}').start == AtTime(
        7, "startingTimestamp"
    )


def test_our_own_options() -> None:
    found = parse_options(
        {
            "assign": '{"t": [2, 0]}',
            "controllers": "c:1",
            "store": "s3://bucket/prefix",
            "splitBytes": "16m",
            "columns": "value, Offset",
            "pushdown": "off",
            "tail": "broker",
            "snapshotTtl": "15m",
        },
        streaming=False,
    )
    assert found.topics == Assign({"t": (0, 2)})
    assert found.cluster == ClusterOptions(controllers=("c:1",), store="s3://bucket/prefix")
    assert (found.split_bytes, found.columns, found.pushdown) == (16 << 20, ("value", "offset"), Pushdown.OFF)
    assert (found.tail, found.snapshot_ttl_ms) == (Tail.BROKER, 900_000)


def test_a_pattern() -> None:
    found = parse_options({"subscribePattern": "a.*", "data": "somewhere"}, streaming=True)
    assert found.topics == SubscribePattern("a.*")
    assert found.cluster == ClusterOptions(data="somewhere")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"subscribe": ""}, "subscribe: the value is empty"),
        ({"assign": '{"t": [0]}'}, "assign: assign and subscribe are mutually exclusive"),
        ({"frobnicate": "1"}, "frobnicate: there is no such option; remove it"),
        ({"path": "/data"}, "path: topics are not paths"),
        ({"awsAccessKeyId": "x"}, "awsAccessKeyId: credentials are never options"),
        ({"s3.secret": "x"}, "s3.secret: credentials are never options"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config: credentials are never options"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            "kafka.security.protocol: 'SASL_SSL' is not supported, only PLAINTEXT; remove this option",
        ),
        (
            {"kafka.auto.offset.reset": "earliest"},
            "kafka.auto.offset.reset: there is no such option; remove it",
        ),
        ({"fs.session-token": "x"}, "fs.session-token: credentials are never options"),
        ({"store": "s3://user:word@bucket/x"}, "store: plans and logs would show the credentials"),
        ({"kafka.bootstrap.servers": "nowhere"}, "kafka.bootstrap.servers: 'nowhere' is not an address"),
        ({"controllers": "c:99999"}, "controllers: 'c:99999' is not an address"),
        ({"controllers": "c:1", "data": "d"}, "data: data and controllers both name a cluster"),
        ({"startingOffsets": "latest"}, "startingOffsets: a batch that begins at the latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets: a batch that begins at the latest"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets: -3 for t-0 is out of range"),
        ({"startingOffsets": "{"}, "startingOffsets: '{' is not a JSON object"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "startingOffsets: not partitions and numbers"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "startingOffsets: not partitions and numbers"),
        ({"startingOffsets": '{"t": [1]}'}, "startingOffsets: not partitions and numbers"),
        ({"endingOffsets": "earliest"}, "endingOffsets: a batch that ends at the earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets: a batch that ends at the earliest"),
        ({"startingTimestamp": "soon"}, "startingTimestamp: 'soon' is not an integer"),
        (
            {"startingOffsetsByTimestampStrategy": "guess"},
            "startingOffsetsByTimestampStrategy: 'guess' is not a valid value",
        ),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: 'perhaps' is neither true nor false"),
        ({"minPartitions": "0"}, "minPartitions: 0 is out of range"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: a batch query has no triggers"),
        ({"columns": "key,size"}, "columns: there is no column size"),
        ({"pushdown": "yes"}, "pushdown: 'yes' is not a valid value"),
        ({"tail": "yes"}, "tail: 'yes' is not a valid value"),
        ({"splitBytes": "1k"}, "splitBytes: 1024 bytes is out of range"),
        ({"splitBytes": "large"}, "splitBytes: 'large' is not a size"),
        ({"snapshotTtl": "10"}, "snapshotTtl: 10 ms is out of range"),
        ({"snapshotTtl": "a while"}, "snapshotTtl: 'a while' is not a duration"),
        ({"kafka.isolation.level": "serializable"}, "kafka.isolation.level: 'serializable' is not a valid"),
    ],
)
def test_errors_are_one_line_with_the_options_name(changes: dict[str, str], line: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options({**BASE, **changes}, streaming=False)
    text = str(caught.value)
    assert text.startswith(line), text
    assert "\n" not in text


def test_no_cluster_and_no_topic() -> None:
    with pytest.raises(OptionError, match=r"^kafka\.bootstrap\.servers: no cluster is named"):
        parse_options({"subscribe": "t"}, streaming=False)
    with pytest.raises(OptionError, match=r"^subscribe: no topic is named"):
        parse_options({"kafka.bootstrap.servers": "a:1"}, streaming=False)
    with pytest.raises(OptionError, match=r"^subscribePattern: .* is not a regular expression"):
        parse_options({"subscribePattern": "(", "kafka.bootstrap.servers": "a:1"}, streaming=False)
    with pytest.raises(OptionError, match=r'^assign: .*write {"topic"'):
        parse_options({"assign": '{"t": ["a"]}', "kafka.bootstrap.servers": "a:1"}, streaming=False)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    with pytest.raises(OptionError, match=rf"^{option}: a stream has no end"):
        parse_options({**BASE, option: "1"}, streaming=True)


def test_trigger_limits_must_be_consistent() -> None:
    found = parse(streaming=True, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="2", maxTriggerDelay="5s")
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger, found.max_trigger_delay_ms) == (
        10,
        2,
        5_000,
    )
    with pytest.raises(OptionError, match=r"^minOffsetsPerTrigger: 11 is more than maxOffsetsPerTrigger, 10"):
        parse(streaming=True, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="11")


def test_errors_and_options_reach_other_processes() -> None:
    error = lease_over(7, "object x is gone")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, PonorSparkError)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert pickle.loads(pickle.dumps(parse())) == parse()


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
        st.dictionaries(st.integers(0, 99), st.integers(-2, 1 << 62), min_size=1),
        min_size=1,
    )
)
def test_offsets_survive_their_json(offsets: dict[str, dict[int, int]]) -> None:
    assert offsets_json("startingOffsets", json.dumps(offsets)) == offsets
