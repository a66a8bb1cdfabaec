"""Snapshots: equal images have equal bytes, sections are bounded, damage is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.digest import EMPTY_DIGEST, running_digest
from ponor_metadata.image import MetadataImage
from ponor_metadata.rows import ALL_BROKERS
from ponor_metadata.snapshot import (
    MAGIC,
    SnapshotCorruptError,
    SnapshotReader,
    begin_snapshot,
    decode,
    encode,
)
from ponor_metadata.validate import validate

from libs.metadata.tests.metadata_kit import (
    NODE_A,
    NODE_B,
    TABLES,
    Log,
    batch_of,
    broker_configs_set,
    completed,
    contents,
    created,
    obj,
    opened,
    partition_changed,
    prepared,
    record,
    so,
    sso,
    stream,
    topic_created,
)


def populated() -> Log:
    log = Log()
    log.commit(record(feature_level_set=pb.FeatureLevelSet(name="metadata.level", level=1)))
    log.commit(*(created(stream(number), zebra="1", apple="2") for number in range(1, 6)))
    log.commit(*(opened(stream(number), 1, NODE_A if number % 2 else NODE_B) for number in range(1, 6)))
    log.commit(prepared(obj(1), 3), prepared(obj(4), 2, NODE_B))
    log.commit(so(obj(1), stream(1), 0, 10), sso(obj(2), (stream(3), 0, 4), (stream(5), 0, 6)))
    log.commit(sso(obj(4), (stream(2), 0, 4), (stream(4), 0, 6), node_id=NODE_B))
    log.commit(record(key_put=pb.KeyPut(key="k", value=b"v")))
    log.commit(topic_created(bytes(16), "orders"), partition_changed(bytes(16), 0), completed(1))
    log.commit(broker_configs_set(ALL_BROKERS, zebra="1", apple="2"), broker_configs_set(NODE_B, kiwi="3"))
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
    log.commit(record(node_fenced=pb.NodeFenced(node_id=NODE_B, node_epoch=1)))
    return log


def test_an_image_comes_back_whole() -> None:
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


def test_an_image_becomes_another_one_and_its_tables_stay_the_same_objects() -> None:
    log = populated()
    image = Log().image
    tables = {name: getattr(image, name) for name in TABLES}
    image.adopt(decode(encode(log.image)))
    assert all(getattr(image, name) is table for name, table in tables.items())
    assert encode(image) == encode(log.image)
    log.commit(prepared(obj(9), 1), so(obj(3), stream(1), 10, 20))
    image.apply_committed(log.encoded[-1])
    validate(image)
    assert encode(image) == encode(log.image)
    assert (image.index, image.digest) == (log.image.index, log.image.digest)


def test_the_empty_image_too() -> None:
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
    assert len(reader.image.streams) == 2_501


SNAPSHOT = encode(populated().image)


@given(st.integers(0, len(SNAPSHOT) - 1), st.integers(1, 255))
def test_no_flipped_byte_passes(position: int, flip: int) -> None:
    damaged = bytearray(SNAPSHOT)
    damaged[position] ^= flip
    with pytest.raises(SnapshotCorruptError, match="snapshot"):
        decode(bytes(damaged))


@given(st.integers(0, len(SNAPSHOT) - 1))
def test_no_truncation_passes(length: int) -> None:
    with pytest.raises(SnapshotCorruptError, match="snapshot"):
        decode(SNAPSHOT[:length])


def test_nothing_may_follow() -> None:
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
        "50 4f 4e 4f 52 49 4d 32"
        "a1 00 00 00  13 76 a6 fd"
        "00  01 00 00 00 00 00 00 00  e8 03 00 00 00 00 00 00"
        f"{digest}  01 00 00 00 00 00 00 00" + "00" * 120 + "56 00 00 00  12 fc 69 bd"
        "01  01 00"
        "00 01 00 00 00 00 00 00 00  00 01 00 00 00 00 00 00 00  63  00 00 00 00 00 00 00 00 00"
        "00 07 00 00 00 00 00 00 00"
        "00 01 00 00 00 00 00 00 00  00 01 00 00 00 00 00 00 00  6e  00 00 00 00 00 00 00 00 00"
        "00 00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00 00"
    )
    assert encoding.state_digest == bytes.fromhex("6b 2c 9a a8 d0 19 13 6a 2f 3a 6f 03 ed ec 2f b8")
