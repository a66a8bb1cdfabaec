"""Identity rules of rows, by which clusters share a bucket and a tenant keeps its names and its
cluster.id.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import decode, encode
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.objects import OBJECTS
from ponor_metadata.nouns.topics import TOPICS, TOPICS_NAMED
from ponor_runtime.identity import (
    CLUSTER_ORDINAL_MAX,
    SEQUENCE_MAX,
    ClusterOrdinal,
    NodeId,
    ObjectId,
    TenantId,
    cluster_of_id,
    compose_id,
)

from libs.metadata.tests.metadata_kit import (
    NODE_A,
    ORDINAL,
    Log,
    batch_of,
    obj,
    record,
    registered,
    tenant,
    topic_created,
)

names = st.text(alphabet="abc.", min_size=1, max_size=3)
tenants = st.sampled_from(["", "blue", "green"])


@given(st.lists(st.tuples(tenants, names), unique=True, max_size=12))
def test_topics_are_keyed_by_tenant_and_name(wanted: list[tuple[str, str]]) -> None:
    log = Log()
    log.commit(tenant("blue", "kafka-blue"), tenant("green", "kafka-green"))
    for number, (tenant_id, name) in enumerate(wanted):
        log.commit(topic_created(number.to_bytes(16, "big"), name, tenant_id))
    for number, (tenant_id, name) in enumerate(wanted):
        (row,) = log.image[TOPICS].find(TOPICS_NAMED, (TenantId(tenant_id), name))
        assert row.topic_id == number.to_bytes(16, "big")


@given(st.integers(1, CLUSTER_ORDINAL_MAX), st.sampled_from(counters.ID_COUNTERS))
def test_every_kind_of_id_contains_the_clusters_ordinal(ordinal: int, kind: str) -> None:
    image = MetadataImage()
    formatted = pb.ClusterFormatted(cluster_id="c", cluster_ordinal=ordinal, namespace="n")
    image.apply_committed(batch_of([record(cluster_formatted=formatted)], 1, 1).SerializeToString())
    first = counters.next_value(image, kind)
    assert cluster_of_id(first) == ordinal
    counters.take(image, kind, first, 5)
    assert counters.next_value(image, kind) == first + 5


@pytest.mark.parametrize("ordinal", [0, CLUSTER_ORDINAL_MAX + 1])
def test_a_format_with_an_invalid_ordinal_is_refused(ordinal: int) -> None:
    formatted = pb.ClusterFormatted(cluster_id="c", cluster_ordinal=ordinal, namespace="n")
    batch = batch_of([record(cluster_formatted=formatted)], 1, 1)
    with pytest.raises(AssertionError, match="cluster ordinal"):
        MetadataImage().apply_committed(batch.SerializeToString())


@given(st.integers(1, CLUSTER_ORDINAL_MAX), st.integers(1, SEQUENCE_MAX))
def test_a_stream_of_another_cluster_does_not_move_the_id_counter(ordinal: int, sequence: int) -> None:
    log = Log()
    before = counters.next_value(log.image, counters.STREAM)
    foreign = compose_id(ClusterOrdinal(ordinal), sequence)
    log.commit(record(stream_created=pb.StreamCreated(stream_id=foreign)))
    after = counters.next_value(log.image, counters.STREAM)
    assert after == (foreign + 1 if ordinal == ORDINAL else before)


@given(st.text(alphabet="abc-9", min_size=1, max_size=20), st.integers(0, 9))
def test_an_object_row_has_its_origin_namespace_and_bucket(namespace: str, bucket_index: int) -> None:
    log = Log()
    prepared = pb.ObjectsPrepared(
        first_object_id=obj(1),
        count=2,
        node_id=NODE_A,
        node_epoch=1,
        expires_at_ms=9,
        bucket_index=bucket_index,
        namespace=namespace,
    )
    log.commit(record(objects_prepared=prepared))
    for image in (log.image, decode(encode(log.image))):
        for number in (1, 2):
            row = image[OBJECTS].get(ObjectId(obj(number)))
            assert row is not None
            assert (row.namespace, row.bucket_index) == (namespace, bucket_index)


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_node_ids_are_below_2_to_the_30(node_id: int) -> None:
    log = Log(nodes=())
    if 0 <= node_id < 1 << 30:
        log.commit(registered(NodeId(node_id)))
        assert len(log.image[NODES]) == 1
    else:
        with pytest.raises(AssertionError, match="2\\^30"):
            log.commit(registered(NodeId(node_id)))


@given(st.dictionaries(st.sampled_from(["blue", "green", "red"]), st.uuids().map(str), max_size=3))
def test_clients_see_the_cluster_id_of_their_tenant(wanted: dict[str, str]) -> None:
    log = Log()
    log.commit(*(tenant(tenant_id, cluster_id) for tenant_id, cluster_id in wanted.items()))
    for tenant_id, cluster_id in wanted.items():
        row = log.image[TENANTS].get(TenantId(tenant_id))
        assert row is not None
        assert row.cluster_id == cluster_id
        with pytest.raises(AssertionError, match="exists"):
            log.image.apply_committed(
                batch_of([tenant(tenant_id, "another")], log.image.index + 1, 99).SerializeToString()
            )
        log = Log()
        log.commit(*(tenant(each, wanted[each]) for each in wanted))


def test_two_tenants_never_show_the_same_cluster_id() -> None:
    log = Log()
    with pytest.raises(AssertionError, match="two tenants have the same"):
        log.commit(tenant("blue", "kafka-1"))
