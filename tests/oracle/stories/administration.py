"""Requests of operators: deleted records, sizes on disk, producers, elections, reassignments."""

from __future__ import annotations

from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ponor_kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ponor_kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ponor_kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ponor_kafka.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ponor_kafka.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

from tests.oracle.asking import batch, fetch, idempotent, list_offsets, produce
from tests.oracle.narrator import Narrator
from tests.oracle.story import story


def delete(name: str, offset: int, partition: int = 0) -> DeleteRecordsRequest:
    """Delete what is below an offset."""
    return DeleteRecordsRequest(
        [DeleteRecordsTopic(name, [DeleteRecordsPartition(partition, offset)])], 10_000
    )


@story("Records below an offset are deleted, and the log is read")
def delete_records(k: Narrator) -> None:
    topic = k.topic("delete-records", 2)
    k.fill(topic, [batch(5), batch(5)])
    for version, offset in ((0, 1), (1, 2), (2, 3)):
        k.ask(delete(topic.name, offset), version, f"below {offset}, in the middle of a batch")
    k.ask(list_offsets(topic, -2), 7, "the first offset")
    k.ask(fetch(topic, 0), 12, "a deleted offset")
    k.ask(fetch(topic, 3), 12, "from the first offset")
    k.ask(delete(topic.name, 1), 2, "below an already deleted offset")
    k.ask(delete(topic.name, 11), 2, "beyond the end")
    k.ask(delete(topic.name, -2), 2, "a negative offset")
    k.ask(delete(topic.name, -1), 2, "everything")
    k.ask(list_offsets(topic, -2), 7, "the first offset is the end")
    k.ask(list_offsets(topic, -3), 7, "the largest timestamp of an empty log")
    k.ask(fetch(topic, 10), 12, "an empty log that begins at 10")
    k.fill(topic, [batch(1)])
    k.ask(fetch(topic, 10), 12, "goes on at 10")
    k.ask(delete(topic.name, -1, partition=1), 2, "everything of an empty log")


@story("Records that cannot be deleted")
def delete_records_errors(k: Narrator) -> None:
    topic = k.topic("delete-records-errors")
    compacted = k.topic("delete-records-compacted", 1, {"cleanup.policy": "compact"})
    k.fill(compacted, [batch(3)])
    k.ask(delete("delete-records-missing", 0), 2, "an unknown topic")
    k.ask(delete(topic.name, 0, partition=1), 2, "an unknown partition")
    k.ask(delete(compacted.name, 1), 2, "of a compacted topic")
    k.ask(DeleteRecordsRequest([], 1000), 2, "nothing")


@story("A producer whose records were deleted continues")
def delete_records_of_producer(k: Narrator) -> None:
    topic = k.topic("delete-records-producer")
    me = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    for number in range(3):
        k.ask(produce(topic, idempotent(me, number)), 9, f"sequence {number}")
    k.ask(delete(topic.name, -1), 2, "everything")
    k.ask(produce(topic, idempotent(me, 3)), 9, "the next sequence")
    k.ask(produce(topic, idempotent(me, 3)), 9, "again")


@story("Active producers")
def describe_producers(k: Narrator) -> None:
    topic = k.topic("describe-producers", 2)
    one = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    two = k.ask(InitProducerIdRequest(None, 60_000), 4, "another")
    k.fill(topic, [idempotent(one, 0, 3), idempotent(two, 0), idempotent(one, 3)])
    k.ask(
        DescribeProducersRequest([TopicRequest(topic.name, [0, 1])]),
        0,
        "two on one partition, none on the other",
    )
    k.ask(DescribeProducersRequest([TopicRequest(topic.name, [2])]), 0, "an unknown partition")
    k.ask(
        DescribeProducersRequest([TopicRequest("describe-producers-missing", [0])]),
        0,
        "an unknown topic",
    )
    k.ask(DescribeProducersRequest([]), 0, "nothing")


@story("Log directories and sizes of partitions")
def describe_log_dirs(k: Narrator) -> None:
    topic = k.topic("log-dirs", 2)
    k.fill(topic, [batch(5)])
    wanted = [DescribableLogDirTopic(topic.name, [0, 1])]
    for version in range(1, 6):
        k.ask(DescribeLogDirsRequest(wanted), version, "two partitions")
    k.ask(DescribeLogDirsRequest([DescribableLogDirTopic(topic.name, [7])]), 4, "an unknown partition")
    k.ask(
        DescribeLogDirsRequest([DescribableLogDirTopic("log-dirs-missing", [0])]),
        4,
        "an unknown topic",
    )
    k.ask(DescribeLogDirsRequest([]), 4, "nothing")


@story("Elections without a candidate")
def elect_leaders(k: Narrator) -> None:
    topic = k.topic("elect", 2)
    for version in (0, 1, 2):
        k.ask(
            ElectLeadersRequest(0, [TopicPartitions(topic.name, [0, 1])], 10_000),
            version,
            "the preferred leader",
        )
    k.ask(ElectLeadersRequest(1, [TopicPartitions(topic.name, [0])], 10_000), 2, "an unclean leader")
    k.ask(ElectLeadersRequest(0, [TopicPartitions(topic.name, [9])], 10_000), 2, "an unknown partition")
    k.ask(ElectLeadersRequest(0, [TopicPartitions("elect-missing", [0])], 10_000), 2, "an unknown topic")
    k.ask(ElectLeadersRequest(5, [TopicPartitions(topic.name, [0])], 10_000), 2, "an invalid election type")


@story("Partition reassignments without an effect")
def partition_reassignments(k: Narrator) -> None:
    topic = k.topic("reassign")
    k.ask(
        ListPartitionReassignmentsRequest(10_000, [ListPartitionReassignmentsTopics(topic.name, [0])]),
        0,
        "of one partition",
    )
    k.ask(
        ListPartitionReassignmentsRequest(
            10_000, [ListPartitionReassignmentsTopics("reassign-missing", [0])]
        ),
        0,
        "of none",
    )

    def move(name: str, replicas: list[int] | None, partition: int = 0) -> AlterPartitionReassignmentsRequest:
        rows = [ReassignableTopic(name, [ReassignablePartition(partition, replicas)])]
        return AlterPartitionReassignmentsRequest(10_000, True, rows)

    for version in (0, 1):
        k.ask(move(topic.name, None), version, "a cancellation without a move")
    k.ask(move(topic.name, [4711]), 1, "to a broker that is not there")
    k.ask(move(topic.name, []), 1, "to no broker")
    k.ask(move(topic.name, [-1]), 1, "to a negative broker")
    k.ask(move(topic.name, [4711, 4711]), 1, "twice to one")
    k.ask(move(topic.name, None, partition=7), 1, "an unknown partition")
    k.ask(move("reassign-missing", [4711]), 1, "an unknown topic")


@story("Replicas moved between unknown log directories")
def alter_replica_log_dirs(k: Narrator) -> None:
    topic = k.topic("move-dirs")

    def move(path: str, name: str, partition: int = 0) -> AlterReplicaLogDirsRequest:
        return AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, [partition])])]
        )

    for version in (1, 2):
        k.ask(move("/no/such/directory", topic.name), version, "to a directory that is not there")
    k.ask(move("relative", topic.name), 2, "to a path that is relative")
    k.ask(move("/no/such/directory", topic.name, 7), 2, "an unknown partition")
    k.ask(move("/no/such/directory", "move-dirs-missing"), 2, "an unknown topic")
    k.ask(AlterReplicaLogDirsRequest([]), 2, "nothing")
