"""Every record kind: its changes, and the invariants that it asserts."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.apply import UnknownRecordError, apply_batch
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.registry import RULES
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import FEATURES, cluster_of
from ponor_metadata.nouns.groups import GROUP_CONFIGS
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    NODES,
    OPERATIONS,
    OPERATIONS_OF,
    NodeRole,
    is_current,
)
from ponor_metadata.nouns.objects import OBJECTS, OBJECTS_WAITING, STREAM_SET_OBJECTS, ObjectState
from ponor_metadata.nouns.streams import (
    STREAM_OBJECTS,
    STREAMS,
    STREAMS_OF_TOPIC,
    STREAMS_OPEN_AT,
    RangeRow,
    StreamRow,
)
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_LED_BY, PARTITIONS_OF, TOPICS, TOPICS_NAMED
from ponor_runtime.identity import DEFAULT_TENANT, NodeId, TenantId, compose_id

from libs.metadata.tests.metadata_kit import (
    GC_NODE,
    NODE_A,
    NODE_B,
    ORDINAL,
    TTL_MS,
    Log,
    batch_of,
    broker_configs_set,
    claimed,
    closed,
    completed,
    contents,
    created,
    destroyed,
    formatted,
    group_configs_set,
    obj,
    opened,
    partition_changed,
    prepared,
    reclaimed,
    record,
    registered,
    removed,
    so,
    sso,
    stream,
    tenant,
    topic_configs_set,
    topic_created,
    trimmed,
)

S1, S2, S3 = stream(1), stream(2), stream(3)
TOPIC = bytes(range(16))


def stream_row(log: Log, number: int = 1) -> StreamRow:
    row = log.image[STREAMS].get(stream(number))
    assert row is not None
    return row


def refused(log: Log, *records: pb.Record, match: str, at_ms: int | None = None) -> None:
    """Check that the batch breaks an invariant, and rebuild the image from the log."""
    with pytest.raises(AssertionError, match=match):
        log.commit(*records, at_ms=at_ms)
    log.image = MetadataImage()
    for encoded in log.encoded:
        log.image.apply_committed(encoded)


def test_every_record_kind_has_one_rule() -> None:
    assert sorted(RULES) == sorted(field.name for field in pb.Record.DESCRIPTOR.oneofs_by_name["kind"].fields)


def test_an_unknown_kind_is_fatal_and_nothing_of_its_batch_is_applied() -> None:
    log = Log()
    before = contents(log.image)
    newer = pb.Record.FromString(b"\xa2\x3e\x02\x08\x01")  # field 1000, as a newer build might write it
    key = record(key_put=pb.KeyPut(key="k", value=b"v"))
    batch = batch_of([key, newer], log.image.index + 1, 99)
    with pytest.raises(UnknownRecordError, match="feature level"):
        apply_batch(log.image, batch)
    assert contents(log.image) == before
    assert log.image.index == batch.index - 1


def test_a_batch_must_have_the_next_index_and_a_cluster_clock_that_does_not_fall() -> None:
    log = Log()
    refused(log, at_ms=0, match="clock went back")
    with pytest.raises(AssertionError, match="does not follow"):
        apply_batch(log.image, batch_of([], log.image.index + 2, 99))
    log.commit(at_ms=log.image.cluster_time_ms)
    assert log.image.index == len(log.encoded)


def test_cluster_is_formatted_once_and_first() -> None:
    log = Log()
    cluster = cluster_of(log.image)
    assert cluster is not None
    assert (cluster.cluster_id, cluster.cluster_ordinal, cluster.namespace) == ("c-1", ORDINAL, "ns-1")
    refused(log, formatted(), match="already formatted")
    bad = record(
        cluster_formatted=pb.ClusterFormatted(cluster_id="c", cluster_ordinal=1 << 14, namespace="n")
    )
    with pytest.raises(AssertionError, match="ordinal"):
        apply_batch(MetadataImage(), batch_of([bad], 1, 0))


def test_feature_levels_only_rise() -> None:
    log = Log()
    log.commit(record(feature_level_set=pb.FeatureLevelSet(name="metadata.level", level=2)))
    row = log.image[FEATURES].get("metadata.level")
    assert row is not None
    assert row.level == 2
    refused(
        log,
        record(feature_level_set=pb.FeatureLevelSet(name="metadata.level", level=2)),
        match="does not rise",
    )


def test_a_tenant_is_created_once() -> None:
    log = Log()
    log.commit(tenant("blue", "kafka-blue"))
    refused(log, tenant("blue", "other"), match="exists")


def test_a_registration_replaces_the_older_process_and_deletes_its_results() -> None:
    log = Log()
    log.commit(completed(1))
    log.commit(completed(2, node_id=NODE_B))
    log.commit(registered(NODE_A, 2))
    assert not log.image[OPERATIONS].find(OPERATIONS_OF, NODE_A)
    assert [row.request_id for row in log.image[OPERATIONS].find(OPERATIONS_OF, NODE_B)] == [2]
    assert is_current(log.image, NODE_A, 2)
    assert not is_current(log.image, NODE_A, 1)
    refused(log, registered(NODE_A, 2), match="not above")
    refused(
        log,
        record(node_registered=pb.NodeRegistered(node_id=1 << 30, node_epoch=1, role=pb.NODE_ROLE_BROKER)),
        match="2\\^30",
    )


def test_a_fenced_node_is_not_current_until_it_registers_again() -> None:
    log = Log()
    log.commit(created(S1))
    log.commit(record(node_fenced=pb.NodeFenced(node_id=NODE_A, node_epoch=1)))
    assert not is_current(log.image, NODE_A, 1)
    refused(log, opened(S1, 1), match="stale")
    refused(log, prepared(obj(1), 1), match="stale")
    refused(log, record(node_fenced=pb.NodeFenced(node_id=NODE_A, node_epoch=0)), match="at epoch 1")
    log.commit(registered(NODE_A, 2))
    log.commit(opened(S1, 1, node_epoch=2))


def test_an_unregistered_node_keeps_its_epoch() -> None:
    log = Log()
    unregistered = record(node_unregistered=pb.NodeUnregistered(node_id=NODE_A, node_epoch=1))
    refused(log, unregistered, match="is not fenced")
    log.commit(record(node_fenced=pb.NodeFenced(node_id=NODE_A, node_epoch=1)))
    refused(
        log, record(node_unregistered=pb.NodeUnregistered(node_id=NODE_A, node_epoch=0)), match="at epoch 1"
    )
    log.commit(unregistered)
    row = log.image[NODES].get(NODE_A)
    assert row is not None
    assert (row.role, row.node_epoch, row.fenced) == (NodeRole.NONE, 1, True)
    refused(log, registered(NODE_A, 1), match="not above")
    log.commit(registered(NODE_A, 2))


def test_a_stream_is_opened_written_closed_and_opened_at_another_node() -> None:
    log = Log()
    log.commit(created(S1, topic="t", partition="0"))
    row = stream_row(log)
    assert (row.open, row.stream_epoch, row.ranges, row.tags) == (
        False,
        -1,
        (),
        {"topic": "t", "partition": "0"},
    )
    log.commit(opened(S1, 3))
    assert [row.stream_id for row in log.image[STREAMS].find(STREAMS_OPEN_AT, NODE_A)] == [S1]
    refused(log, opened(S1, 4, NODE_B), match="is open")
    log.commit(prepared(obj(1), 2))
    log.commit(so(obj(1), S1, 0, 10))
    refused(log, closed(S1, 2), match="epoch 3")
    log.commit(closed(S1, 3))
    refused(log, so(obj(2), S1, 10, 20), match="closed")
    refused(log, opened(S1, 3, NODE_B), match="does not rise")
    log.commit(opened(S1, 4, NODE_B))
    assert stream_row(log).ranges == (RangeRow(3, NODE_A, 0, 10), RangeRow(4, NODE_B, 10, 10))  # type: ignore[arg-type]
    assert not log.image[STREAMS].find(STREAMS_OPEN_AT, NODE_A)


def test_an_open_drops_an_empty_last_range() -> None:
    log = Log()
    log.commit(created(S1))
    for epoch in range(5):
        log.commit(opened(S1, epoch, NODE_A if epoch % 2 else NODE_B))
        log.commit(closed(S1, epoch))
    assert [piece.stream_epoch for piece in stream_row(log).ranges] == [4]


def test_a_commit_must_begin_at_the_end_of_the_stream() -> None:
    log = Log()
    log.commit(created(S1), created(S2))
    log.commit(opened(S1, 1), opened(S2, 1))
    log.commit(prepared(obj(1), 4))
    log.commit(sso(obj(1), (S1, 0, 5), (S2, 0, 7)))
    assert (stream_row(log, 1).end_offset, stream_row(log, 2).end_offset) == (5, 7)
    refused(log, so(obj(2), S1, 4, 9), match="does not begin at the end")
    refused(log, so(obj(2), S1, 6, 9), match="does not begin at the end")
    refused(log, so(obj(1), S1, 5, 9), match="not PREPARED")
    refused(log, so(obj(99), S1, 5, 9), match="does not exist")
    refused(log, sso(obj(2), (S3, 0, 5)), match="does not exist")
    refused(log, sso(obj(2), (S1, 5, 9), node_id=NODE_B), match="wrote offset")
    log.commit(so(obj(2), S1, 5, 9), sso(obj(3), (S1, 9, 10), (S2, 7, 8)))
    assert stream_row(log).end_offset == 10
    orders = [row.commit_order for row in log.image[STREAM_SET_OBJECTS]]
    assert orders == [0, 1]


def test_a_trim_drops_ranges_below_the_start() -> None:
    log = Log()
    log.commit(created(S1), created(S2))
    log.commit(opened(S1, 1), opened(S2, 1))
    log.commit(prepared(obj(1), 5))
    log.commit(so(obj(1), S1, 0, 10), so(obj(2), S1, 10, 20))
    log.commit(closed(S1, 1), opened(S1, 2, NODE_B))
    log.commit(prepared(obj(6), 1, NODE_B))
    log.commit(sso(obj(6), (S1, 20, 30), node_id=NODE_B))
    refused(log, trimmed(S1, 31), match="outside")
    refused(log, trimmed(S1, 0), match="outside")
    log.commit(trimmed(S1, 12))
    refused(log, reclaimed(S1), match="has no live data and was not destroyed")
    log.commit(destroyed(obj(1)), reclaimed(S1))
    refused(log, reclaimed(S1), match="neither trimmed nor deleted")
    assert [row.object_id for row in log.image[STREAM_OBJECTS]] == [obj(2)]
    assert len(stream_row(log).ranges) == 2
    log.commit(trimmed(S1, 30), destroyed(obj(2), obj(6)), reclaimed(S1))
    assert stream_row(log).ranges == (RangeRow(2, NODE_B, 20, 30),)  # type: ignore[arg-type]
    assert len(log.image[STREAM_SET_OBJECTS]) == 0


def test_a_deleted_stream_has_no_rows_and_its_id_is_not_reused() -> None:
    log = Log()
    log.commit(created(S1), created(S2))
    log.commit(opened(S1, 1), prepared(obj(1), 1))
    log.commit(so(obj(1), S1, 0, 10))
    log.commit(record(stream_deleted=pb.StreamDeleted(stream_id=S1)))
    refused(log, reclaimed(S1), match="has no live data and was not destroyed")
    log.commit(destroyed(obj(1)), reclaimed(S1))
    assert S1 not in log.image[STREAMS]
    refused(log, created(S1), match="was assigned before")
    assert counters.next_value(log.image, counters.STREAM) == stream(3)


def test_object_states_never_fall() -> None:
    log = Log(nodes=(NODE_A, GC_NODE))
    log.commit(created(S1), opened(S1, 1), prepared(obj(1), 3))
    refused(log, prepared(obj(3), 2), match="was assigned before")
    log.commit(so(obj(1), S1, 0, 5))
    refused(log, claimed(obj(1)), match="in use")
    refused(log, removed(obj(1)), match="COMMITTED")
    refused(log, claimed(obj(2)), match="may still be committed")
    log.commit(claimed(obj(2)), at_ms=TTL_MS)
    row = log.image[OBJECTS].get(obj(2))
    assert row is not None
    assert (row.state, row.destroyed_at_ms, row.claimed_until_ms) == (ObjectState.DESTROYED, TTL_MS, 10_000)
    refused(log, so(obj(2), S1, 5, 9), match="not PREPARED")
    refused(log, destroyed(obj(2)), match="already destroyed")
    log.commit(removed(obj(2)))
    assert obj(2) not in log.image[OBJECTS]
    log.commit(destroyed(obj(3), at_ms=TTL_MS))
    refused(log, removed(obj(3)), match="never claimed")


def test_one_collector_at_a_time_has_a_claim() -> None:
    log = Log(nodes=(NODE_A, NODE_B, GC_NODE))
    log.commit(prepared(obj(1), 1))
    log.commit(claimed(obj(1), until_ms=5_000), at_ms=TTL_MS)
    refused(log, claimed(obj(1), node_id=NODE_B), match="is claimed")
    log.commit(claimed(obj(1), until_ms=6_000))
    log.commit(claimed(obj(1), until_ms=9_000, node_id=NODE_B), at_ms=6_000)


def test_waiting_objects_are_found_by_due_time() -> None:
    log = Log()
    log.commit(prepared(obj(1), 2, expires_at_ms=300), prepared(obj(3), 1, expires_at_ms=100))
    waiting = log.image[OBJECTS].find(OBJECTS_WAITING, ObjectState.PREPARED)
    assert [row.object_id for row in waiting] == [obj(3), obj(1), obj(2)]
    log.commit(destroyed(obj(2), at_ms=50))
    log.commit(destroyed(obj(1), at_ms=40))
    waiting = log.image[OBJECTS].find(OBJECTS_WAITING, ObjectState.DESTROYED)
    assert [row.object_id for row in waiting] == [obj(1), obj(2)]


def test_keys_are_put_replaced_and_deleted() -> None:
    log = Log()
    log.commit(record(key_put=pb.KeyPut(key="k", value=b"1")))
    log.commit(record(key_put=pb.KeyPut(key="k", value=b"2")))
    row = log.image[KEYS].get("k")
    assert row is not None
    assert row.value == b"2"
    log.commit(record(key_deleted=pb.KeyDeleted(key="k")))
    assert "k" not in log.image[KEYS]
    refused(log, record(key_deleted=pb.KeyDeleted(key="k")), match="does not exist")


def test_topics_are_unique_by_id_and_within_their_tenant_by_name() -> None:
    log = Log()
    log.commit(tenant("blue", "kafka-blue"))
    log.commit(topic_created(TOPIC, "orders"))
    other = TOPIC[::-1]
    refused(log, topic_created(other, "orders"), match="exists")
    refused(log, topic_created(TOPIC, "payments"), match="exists")
    refused(log, topic_created(other, "orders", "green"), match="tenant 'green'")
    log.commit(topic_created(other, "orders", "blue"))
    (row,) = log.image[TOPICS].find(TOPICS_NAMED, (TenantId("blue"), "orders"))
    assert row.topic_id == other
    log.commit(record(topic_deleted=pb.TopicDeleted(topic_id=TOPIC)))
    log.commit(topic_created(bytes(16), "orders"))


def test_partitions_have_rising_leader_epochs() -> None:
    log = Log()
    log.commit(
        topic_created(TOPIC, "orders"), partition_changed(TOPIC, 0), partition_changed(TOPIC, 1, NODE_B)
    )
    refused(log, partition_changed(TOPIC, 3), match="cannot exist without partition 2")
    refused(log, partition_changed(bytes(16), 0), match="does not exist")
    refused(log, partition_changed(TOPIC, 0, NODE_B), match="does not rise")
    log.commit(partition_changed(TOPIC, 0, NODE_B, 1))
    assert [row.partition for row in log.image[PARTITIONS].find(PARTITIONS_LED_BY, NODE_B)] == [0, 1]
    assert [row.partition for row in log.image[PARTITIONS].find(PARTITIONS_OF, TOPIC)] == [0, 1]
    log.commit(record(topic_deleted=pb.TopicDeleted(topic_id=TOPIC)))
    assert len(log.image[PARTITIONS]) == 0


def test_producer_ids_are_handed_out_once() -> None:
    log = Log()
    first = counters.next_value(log.image, counters.PRODUCER)
    assert first == compose_id(ORDINAL, 1)

    def allocated(first_id: int) -> pb.Record:
        return record(
            producer_ids_allocated=pb.ProducerIdsAllocated(
                first_producer_id=first_id, count=1000, node_id=NODE_A
            )
        )

    log.commit(allocated(first))
    assert counters.next_value(log.image, counters.PRODUCER) == first + 1000
    refused(log, allocated(first + 999), match="was assigned before")


def test_results_are_kept_until_the_node_confirms_them() -> None:
    log = Log()
    for request_id in (1, 2, 3):
        log.commit(completed(request_id))
    log.commit(completed(4, first_incomplete_id=3))
    kept = log.image[OPERATIONS].find(OPERATIONS_OF, NODE_A)
    assert [(row.request_id, row.result) for row in kept] == [(3, b"result 3"), (4, b"result 4")]
    assert kept[0].commit_index == log.image.index - 1
    refused(log, completed(2), match="the first request without an answer")
    refused(log, completed(4, first_incomplete_id=3), match="already has a result")
    refused(log, completed(5, node_epoch=0), match="stale")
    node = log.image[NODES].get(NODE_A)
    assert node is not None
    assert (node.first_incomplete_id, node.role) == (3, NodeRole.BROKER)


def test_a_record_replaces_all_settings() -> None:
    log = Log()
    log.commit(topic_created(TOPIC, "orders"))
    log.commit(topic_configs_set(TOPIC, retention="1", segment="2"))
    log.commit(topic_configs_set(TOPIC, segment="3"))
    topic = log.image[TOPICS].get(TOPIC)
    assert topic is not None
    assert (topic.name, topic.configs) == ("orders", {"segment": "3"})
    refused(log, topic_configs_set(bytes(15) + b"x", segment="3"), match="does not exist")


def test_a_group_without_dynamic_settings_has_no_row() -> None:
    log = Log()
    log.commit(group_configs_set("g", a="1"), group_configs_set("g", a="2", b="3"))
    assert list(log.image[GROUP_CONFIGS]) == [(DEFAULT_TENANT, "g", {"a": "2", "b": "3"})]
    log.commit(group_configs_set("g"))
    assert len(log.image[GROUP_CONFIGS]) == 0
    refused(log, group_configs_set("g"), match="no settings")
    refused(log, group_configs_set("", a="1"), match="not empty")
    unknown = pb.GroupConfigsSet(tenant_id="unknown-tenant", group_id="g", configs={"a": "1"})
    refused(log, record(group_configs_set=unknown), match="tenant 'unknown-tenant' does not exist")


def test_a_broker_without_dynamic_settings_has_no_row() -> None:
    log = Log()
    log.commit(broker_configs_set(ALL_BROKERS, a="1"), broker_configs_set(NODE_A, a="2", b="3"))
    assert [(row.node_id, row.configs) for row in log.image[BROKER_CONFIGS]] == [
        (ALL_BROKERS, {"a": "1"}),
        (NODE_A, {"a": "2", "b": "3"}),
    ]
    log.commit(broker_configs_set(ALL_BROKERS))
    assert log.image[BROKER_CONFIGS].get(ALL_BROKERS) is None
    refused(log, broker_configs_set(ALL_BROKERS), match="no dynamic settings")
    refused(log, broker_configs_set(NodeId(5), a="1"), match="unknown")


def test_streams_are_found_by_their_topic_tag() -> None:
    log = Log()
    log.commit(created(S1, topic="t"), created(S2, topic="u"), created(S3))
    log.commit(opened(S1, 1))
    assert [row.stream_id for row in log.image[STREAMS].find(STREAMS_OF_TOPIC, "t")] == [S1]
    assert log.image[STREAMS].find(STREAMS_OF_TOPIC, "t")[0].open
    log.commit(record(stream_deleted=pb.StreamDeleted(stream_id=S1)))
    assert not log.image[STREAMS].find(STREAMS_OF_TOPIC, "t")
