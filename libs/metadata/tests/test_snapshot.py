"""Snapshots: equal images have equal bytes, sections are bounded, damage is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.batches import EMPTY_DIGEST, running_digest
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.registry import SCHEMAS
from ponor_metadata.image.snapshot import (
    MAGIC,
    SnapshotCorruptError,
    SnapshotReader,
    begin_snapshot,
    decode,
    encode,
)
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.cluster import (
    METADATA_LEVEL,
)
from ponor_metadata.nouns.nodes import ALL_BROKERS, WalKind
from ponor_metadata.nouns.streams import STREAMS
from ponor_runtime.identity import NodeId

from libs.metadata.tests.metadata_kit import (
    COMPACTOR,
    NODE_A,
    NODE_B,
    Log,
    acl_created,
    acl_rule,
    batch_of,
    broker_configs_set,
    compaction_leased,
    completed,
    contents,
    created,
    drain_set,
    fenced,
    group_configs_set,
    move_begun,
    obj,
    opened,
    partition_changed,
    prepared,
    record,
    registered,
    scram_credential_set,
    snapshot_leased,
    so,
    sso,
    stream,
    topic_created,
    trimmed,
    wal_assigned,
    wal_opened,
    wal_trimmed,
)


def populated() -> Log:
    """A log with a row in every table."""
    log = Log()
    level = pb.FeatureLevelSet(name=METADATA_LEVEL, level=1)
    log.commit(record(feature_level_set=level))
    log.commit(*(created(stream(number), zebra="1", apple="2") for number in range(1, 6)))
    log.commit(*(opened(stream(number), 1, NODE_A if number % 2 else NODE_B) for number in range(1, 6)))
    log.commit(prepared(obj(1), 3), prepared(obj(4), 2, NODE_B))
    log.commit(so(obj(1), stream(1), 0, 10), sso(obj(2), (stream(3), 0, 4), (stream(5), 0, 6)))
    log.commit(sso(obj(4), (stream(2), 0, 4), (stream(4), 0, 6), node_id=NODE_B))
    log.commit(record(key_put=pb.KeyPut(key="k", value=b"v")))
    log.commit(topic_created(bytes(16), "orders"), partition_changed(bytes(16), 0), completed(1))
    log.commit(broker_configs_set(ALL_BROKERS, zebra="1", apple="2"), broker_configs_set(NODE_B, kiwi="3"))
    log.commit(group_configs_set("payments", zebra="1", apple="2"))
    members = [
        pb.QuorumMember(
            node_id=number,
            directory_id=bytes(16),
            peer_address="a:1",
            service_address="a:2",
            voter=number == 1,
        )
        for number in (1, 2)
    ]
    log.commit(record(voters_set=pb.VotersSet(members=members)))
    log.commit(fenced(NODE_B))
    log.commit(registered(NODE_A, 2, wal=WalKind.OBJECT), registered(NODE_B, 2, wal=WalKind.OBJECT))
    log.commit(wal_opened(NODE_A, 2), wal_opened(NODE_B, 2))
    log.commit(wal_trimmed(1 << 63, NODE_B, 2), fenced(NODE_B, 2))
    log.commit(wal_assigned(NODE_A, recoverer_epoch=2, node_id=NODE_B, wal_epoch=2))
    log.commit(registered(NODE_B, 3, wal=WalKind.OBJECT), move_begun(bytes(16), 0), drain_set(NODE_B, 3))
    log.commit(
        record(cluster_stop_announced=pb.ClusterStopAnnounced(until_ms=7)),
        record(balancer_paused=pb.BalancerPaused(paused=True)),
        completed(1, node_epoch=2),
    )
    log.commit(registered(COMPACTOR, role=2))
    log.commit(compaction_leased(1, obj(2), until_ms=1 << 50))
    log.commit(snapshot_leased(1, log.image.index, log.image.cluster_time_ms))
    log.commit(scram_credential_set("alice"), acl_created(acl_rule()))
    log.commit(registered(NodeId(NODE_B + 1), listeners={"TLS": "c:9093"}))
    log.commit(trimmed(stream(1), 1), record(orphans_found=pb.OrphansFound(topic_id=b"o" * 16)))
    return log


def test_a_decoded_image_equals_the_encoded_one() -> None:
    image = populated().image
    back = decode(encode(image))
    assert contents(back) == contents(image)
    assert (back.index, back.cluster_time_ms, back.digest) == (
        image.index,
        image.cluster_time_ms,
        image.digest,
    )
    assert encode(back) == encode(image)
    assert all(contents(image).values()), "a table without a row is not tested here"


def test_adopt_takes_the_rows_and_keeps_the_table_objects() -> None:
    log = populated()
    image = Log().image
    tables = dict(image)
    image.adopt(decode(encode(log.image)))
    assert all(image[schema] is table for schema, table in tables.items())
    assert encode(image) == encode(log.image)
    log.commit(prepared(obj(9), 1, node_epoch=2), so(obj(3), stream(1), 10, 20))
    image.apply_committed(log.encoded[-1])
    validate(image)
    assert encode(image) == encode(log.image)
    assert (image.index, image.digest) == (log.image.index, log.image.digest)


def test_adopt_moves_the_previous_rows_to_the_other_image_which_is_released_in_steps() -> None:
    log, replaced = populated(), populated()
    before = encode(replaced.image)
    picture = begin_snapshot(replaced.image)
    newer = decode(encode(log.image))
    replaced.image.adopt(newer)
    assert sum(1 for _ in newer.release()) >= sum(len(newer[schema]) > 0 for schema in SCHEMAS)
    for schema in SCHEMAS:
        assert len(newer[schema]) == 0
        assert list(newer[schema]) == []
    assert encode(replaced.image) == encode(log.image)
    assert b"".join(picture) == before  # a snapshot under way keeps what it shows


def test_a_decoded_empty_image_is_empty() -> None:
    assert contents(decode(encode(MetadataImage()))) == contents(MetadataImage())


def test_the_digest_runs_over_the_bytes_of_the_log() -> None:
    log = populated()
    digest = EMPTY_DIGEST
    for encoded in log.encoded:
        digest = running_digest(digest, encoded)
    assert log.image.digest == digest
    assert running_digest(EMPTY_DIGEST, b"a") != running_digest(EMPTY_DIGEST, b"b")


def test_large_tables_are_read_in_sections() -> None:
    log = Log()
    log.commit(*(created(stream(number)) for number in range(1, 2_502)))
    reader = SnapshotReader(encode(log.image))
    sections = 0
    while reader.read_section():
        sections += 1
    assert sections == len([table for table in contents(log.image).values() if table]) + 4
    assert len(reader.image[STREAMS]) == 2_501


SNAPSHOT = encode(populated().image)


@given(st.integers(0, len(SNAPSHOT) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused(position: int, flip: int) -> None:
    damaged = bytearray(SNAPSHOT)
    damaged[position] ^= flip
    with pytest.raises(SnapshotCorruptError, match="snapshot"):
        decode(bytes(damaged))


@given(st.integers(0, len(SNAPSHOT) - 1))
def test_a_truncated_snapshot_is_refused(length: int) -> None:
    with pytest.raises(SnapshotCorruptError, match="snapshot"):
        decode(SNAPSHOT[:length])


def test_trailing_bytes_and_other_magics_are_refused() -> None:
    with pytest.raises(SnapshotCorruptError, match="after the last section"):
        decode(SNAPSHOT + b"\0")
    with pytest.raises(SnapshotCorruptError, match="magic"):
        decode(b"NOTPONOR" + SNAPSHOT[len(MAGIC) :])


def test_the_worked_example_of_the_format_document() -> None:
    image = MetadataImage()
    formatted = pb.ClusterFormatted(cluster_id="c", cluster_ordinal=7, namespace="n")
    batch = batch_of([record(cluster_formatted=formatted)], 1, 1_000).SerializeToString(deterministic=True)
    assert batch == bytes.fromhex("08 01  10 01  18 e8 07  22 0a 0a 08 0a 01 63 10 07 1a 01 6e")
    image.apply_committed(batch)
    digest = "47 94 25 3c 1d 84 33 92 10 5d da 03 07 c0 ca a9"
    assert image.digest == bytes.fromhex(digest)
    encoding = begin_snapshot(image)
    assert b"".join(encoding) == bytes.fromhex(
        "50 4f 4e 4f 52 49 4d 31"
        "f1 00 00 00  80 57 b0 9c"
        "00  01 00 00 00 00 00 00 00  e8 03 00 00 00 00 00 00"
        f"{digest}  01 00 00 00 00 00 00 00" + "00" * 200 + "68 00 00 00  5e 4f e6 1f"
        "01  01 00"
        "00 01 00 00 00 00 00 00 00  00 01 00 00 00 00 00 00 00  63  00 00 00 00 00 00 00 00 00"
        "00 07 00 00 00 00 00 00 00"
        "00 01 00 00 00 00 00 00 00  00 01 00 00 00 00 00 00 00  6e  00 00 00 00 00 00 00 00 00"
        "00 00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00 00"
        "00 00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00 00"
    )
    assert encoding.state_digest == bytes.fromhex("17 80 fa a2 ad 23 8c 8f a5 d0 e4 62 ea 8a bf 47")
