"""Records of streams groups are in Kafka's format."""

from __future__ import annotations

import pytest
from ponor_broker.groups.consumer.records import TargetEpoch
from ponor_broker.groups.record_codec import decode_entry, encode_entry
from ponor_broker.groups.streams.assignment import CurrentAssignment, MemberState, TaskId, Tasks
from ponor_broker.groups.streams.member import Endpoint, StreamsMember
from ponor_broker.groups.streams.records import (
    GroupEpoch,
    RecordKind,
    StreamsEntry,
    StreamsKey,
    StreamsValue,
)
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology

from services.broker.tests.streams_kit import WORD_COUNT, tasks

TOPOLOGY = Topology(
    3,
    (
        Subtopology(
            "0",
            source_topics=("a", "b"),
            repartition_sources=(InternalTopic("r", 4, 1, (("retention.ms", "-1"),)), InternalTopic("s")),
            repartition_sinks=("t",),
            changelogs=(InternalTopic("c", 0, 2),),
            copartition_groups=(frozenset({"b", "s"}), frozenset({"a"})),
        ),
    ),
)
MEMBER = StreamsMember("m", "rack", "client", "/host", 5_000, 3, "p", Endpoint("h", 8_080), (("zone", "a"),))
CURRENT = CurrentAssignment(
    5,
    4,
    MemberState.UNREVOKED_TASKS,
    {TaskId("0", 1): 3, TaskId("1", 0): 4},
    tasks("1", 2),
    {TaskId("0", 0): 2},
    tasks("0", 5),
)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (RecordKind.EPOCH, GroupEpoch(7, -5, 3, (("num.standby.replicas", "1"),))),
        (RecordKind.EPOCH, GroupEpoch(7)),
        (RecordKind.MEMBER, MEMBER),
        (RecordKind.MEMBER, StreamsMember("m")),
        (RecordKind.TARGET_EPOCH, TargetEpoch(7, 1_000)),
        (RecordKind.TARGET, Tasks(tasks("0", 1, 2), tasks("1", 3))),
        (RecordKind.CURRENT, CURRENT),
        (RecordKind.TOPOLOGY, TOPOLOGY),
        (RecordKind.TOPOLOGY, WORD_COUNT),
        (RecordKind.TOPOLOGY, None),
        (RecordKind.MEMBER, None),
    ],
)
def test_an_entry_is_restored_from_its_bytes(kind: RecordKind, value: StreamsValue | None) -> None:
    is_of_member = kind in {RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT}
    entry = StreamsEntry(StreamsKey(kind, "group", "m" if is_of_member else ""), value)
    key, encoded = encode_entry(entry)
    assert int.from_bytes(key[:2], "big") == kind
    assert decode_entry(key, encoded) == entry


def test_the_bytes_are_those_of_kafka() -> None:
    key, value = encode_entry(
        StreamsEntry(StreamsKey(RecordKind.TARGET, "g", "m"), Tasks(tasks("0", 1), frozenset()))
    )
    assert key == b"\x00\x15\x00\x01g\x00\x01m"
    assert value == b"\x00\x00\x02\x020\x02\x00\x00\x00\x01\x00\x01\x01\x00"
