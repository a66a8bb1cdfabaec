"""Moves and drain: the leader stays until the election, a partition has one move, and the end of a move
deletes its row.
"""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, MOVES_TO, PARTITIONS, MoveCause

from libs.metadata.tests.metadata_kit import (
    GC_NODE,
    NODE_A,
    NODE_B,
    Log,
    batch_of,
    created,
    drain_set,
    fenced,
    move_begun,
    move_cancelled,
    partition_changed,
    record,
    registered,
    stream,
    topic_created,
)

TOPIC = b"t" * 16


def with_a_topic() -> Log:
    log = Log()
    log.commit(registered(GC_NODE, role=3))
    log.commit(topic_created(TOPIC, "orders"), partition_changed(TOPIC, 0), partition_changed(TOPIC, 1))
    return log


def refused(log: Log, *records: pb.Record, match: str) -> None:
    batch = batch_of(records, log.image.index + 1, log.image.cluster_time_ms)
    with pytest.raises(AssertionError, match=match):
        log.image.replay(batch.SerializeToString())


def test_the_source_leads_until_the_election() -> None:
    log = with_a_topic()
    log.commit(move_begun(TOPIC, 1))
    partition = log.image[PARTITIONS].get((TOPIC, 1))
    assert partition is not None
    assert (partition.leader_id, partition.leader_epoch, partition.replicas) == (NODE_A, 0, (NODE_B,))
    (move,) = log.image[MOVES].find(MOVES_FROM, NODE_A)
    assert (move.target_id, move.elect_at_ms, move.cause, move.reason) == (
        NODE_B,
        10_005,
        MoveCause.REQUEST,
        "asked for",
    )
    assert list(log.image[MOVES].find(MOVES_TO, NODE_B)) == [move]
    log.commit(partition_changed(TOPIC, 1, NODE_B, 1))
    assert not log.image[MOVES]


def test_a_cancelled_move_restores_the_partition() -> None:
    log = with_a_topic()
    before = log.image[PARTITIONS].get((TOPIC, 0))
    log.commit(move_begun(TOPIC, 0))
    log.commit(move_cancelled(TOPIC, 0))
    assert log.image[PARTITIONS].get((TOPIC, 0)) == before
    assert not log.image[MOVES].find(MOVES_TO, NODE_B)


def test_a_restart_of_the_source_or_a_deletion_of_the_topic_ends_a_move() -> None:
    log = with_a_topic()
    log.commit(move_begun(TOPIC, 0), move_begun(TOPIC, 1))
    log.commit(registered(NODE_A, 2), partition_changed(TOPIC, 0, NODE_A, 1))
    assert [row.partition for row in log.image[MOVES]] == [1]
    log.commit(record(topic_deleted=pb.TopicDeleted(topic_id=TOPIC)))
    assert not log.image[MOVES]


def test_a_registration_or_a_fence_ends_a_drain() -> None:
    log = with_a_topic()

    def draining() -> list[bool]:
        return [row.draining for row in log.image[NODES] if row.node_id in (NODE_A, NODE_B)]

    log.commit(drain_set(NODE_A), drain_set(NODE_B))
    assert draining() == [True, True]
    log.commit(registered(NODE_A, 2), fenced(NODE_B))
    assert draining() == [False, False]
    log.commit(drain_set(NODE_A, 2))
    log.commit(drain_set(NODE_A, 2, draining=False))
    assert draining() == [False, False]


def test_the_cluster_row_has_the_announced_stop_and_the_paused_balancer() -> None:
    log = with_a_topic()
    log.commit(
        record(cluster_stop_announced=pb.ClusterStopAnnounced(until_ms=70_000)),
        record(balancer_paused=pb.BalancerPaused(paused=True)),
    )
    cluster = cluster_of(log.image)
    assert cluster is not None
    assert (cluster.stop_until_ms, cluster.balancer_paused) == (70_000, True)
    log.commit(
        record(cluster_stop_announced=pb.ClusterStopAnnounced()), record(balancer_paused=pb.BalancerPaused())
    )
    cluster = cluster_of(log.image)
    assert cluster is not None
    assert (cluster.stop_until_ms, cluster.balancer_paused) == (0, False)


def test_streams_are_found_by_their_partition_tags() -> None:
    log = with_a_topic()
    log.commit(
        created(stream(1), topic="t", partition="1"),
        created(stream(2), topic="t", partition="11"),
        created(stream(3), topic="u", partition="1"),
        created(stream(4), topic="t"),
        created(stream(5), partition="1", topic="t", kind="time"),
    )
    found = log.image[STREAMS].find(STREAMS_OF_PARTITION, ("t", "1"))
    assert [row.stream_id for row in found] == [stream(1), stream(5)]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([move_begun(TOPIC, 2)], "does not exist"),
        ([move_begun(TOPIC, 0, NODE_B, NODE_A)], "is led by"),
        ([move_begun(TOPIC, 0, NODE_A, NODE_A)], "already"),
        ([move_begun(TOPIC, 0), move_begun(TOPIC, 0)], "is already moving"),
        ([move_begun(TOPIC, 0, NODE_A, GC_NODE)], "not a broker"),
        ([fenced(NODE_B), move_begun(TOPIC, 0)], "is fenced"),
        ([move_cancelled(TOPIC, 0)], "is not moving"),
        ([fenced(NODE_A), drain_set(NODE_A)], "is stale"),
        ([drain_set(NODE_A, 2)], "is stale"),
        ([drain_set(GC_NODE)], "not a broker"),
    ],
)
def test_an_invalid_move_or_drain_breaks_an_invariant(records: list[pb.Record], words: str) -> None:
    refused(with_a_topic(), *records, match=words)
