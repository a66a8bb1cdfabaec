"""Tests of snapshots of a running cluster: a real controller and broker, objects in a directory, leases that
are renewed and end.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from ponor.common.v1 import error_pb2
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock
from ponor_spark.cluster import ClusterReader, find_cluster
from ponor_spark.cluster_address import ClusterAddress
from ponor_spark.errors import (
    ClusterUnreachableError,
    OptionError,
    SnapshotExpiredError,
    StoredDataError,
    TopicMissingError,
)
from ponor_spark.lease_keeper import LEASES_MAX, LeaseKeeper
from ponor_spark.lease_notes import LEASES_VARIABLE, LeaseNotes
from ponor_spark.offsets import batch_ranges
from ponor_spark.options import ClusterOptions, parse_options
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot import Lease, PartitionSnapshot, Snapshot
from ponor_spark.snapshot_opening import close_snapshot, open_snapshot_with_tails
from ponor_spark.split_reading import read_split
from ponor_spark.topics import Assign, Subscribe, SubscribePattern

from spark.tests.stored_snapshots import options
from tests.integration.cluster_in_process import RunningCluster, running_cluster

DEADLINE_S = 240.0
TTL_MS = 600_000
KEPT_TTL_MS = 12_000
"""Duration of a lease, renewed after a third of it: any process gets CPU time within the rest."""
SETTINGS = {
    "maintenance_interval_ms": "50",
    "upload_interval_ms": "200",
    "segment_bytes": "10000",
    "cleaner_interval_ms": "50",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), SETTINGS) as running:
        yield running


@pytest.fixture
def reader(cluster: RunningCluster) -> Iterator[ClusterReader]:
    with ClusterReader(find_cluster(ClusterOptions(bootstrap=(cluster.kafka,))), environment={}) as found:
        yield found


def create(cluster: RunningCluster, name: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    named = {key.replace("_", "."): value for key, value in configs.items()}
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=named)]).values():
        future.result(DEADLINE_S)


def produce(
    cluster: RunningCluster, topic: str, count: int, *, keys: int = 1 << 30, partition: int = 0
) -> None:
    """Produce numbered records, at most ten per batch, so that segments can roll between batches."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.kafka, "batch.num.messages": 10, "linger.ms": 5}
    )
    for number in range(count):
        producer.produce(
            topic, key=b"%d" % (number % keys), value=b"%d" % number + bytes(300), partition=partition
        )
    assert producer.flush(DEADLINE_S) == 0


def consumed(cluster: RunningCluster, topic: str) -> list[tuple[int, bytes]]:
    """Return offset and key of a Kafka consumer's records in partition 0."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.kafka,
            "group.id": "none",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[tuple[int, bytes]] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append((message.offset() or 0, message.key() or b""))
    finally:
        consumer.close()
    raise AssertionError("the consumer did not reach the end")


def rows_of(snapshot: Snapshot) -> list[tuple[int, bytes]]:
    """Return offset and key of every row, in split order."""
    chosen = options()
    splits = plan(snapshot, batch_ranges(snapshot, chosen), PushedFilters(), chosen)
    batches = [batch.to_pydict() for split in splits for batch in read_split(split, ["offset", "key"])]
    return [row for batch in batches for row in zip(batch["offset"], batch["key"], strict=True)]


def wait_for_snapshot(
    reader: ClusterReader, topic: str, is_enough: Callable[[PartitionSnapshot], bool]
) -> Snapshot:
    """Return the first snapshot whose first partition is as requested; close the others."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        snapshot = reader.open_snapshot(Subscribe((topic,)), ttl_ms=TTL_MS)
        if is_enough(snapshot.partitions[0]):
            return snapshot
        reader.close_lease(snapshot.lease_id)
        assert time.monotonic() < deadline, snapshot.partitions
        time.sleep(0.05)


def test_a_bootstrap_address_is_enough(cluster: RunningCluster, reader: ClusterReader) -> None:
    create(cluster, "plain", partitions=2)
    produce(cluster, "plain", 300)
    snapshot = wait_for_snapshot(reader, "plain", lambda each: each.committed_end_offset == 300)
    assert [each.partition for each in snapshot.partitions] == [0, 1]
    assert snapshot.partitions[1].segments == ()
    assert snapshot.partitions[0].leader == cluster.kafka
    assert snapshot.index >= snapshot.lease.index
    assert rows_of(pickle.loads(pickle.dumps(snapshot))) == consumed(cluster, "plain")


def test_controllers_alone_are_enough_too(cluster: RunningCluster) -> None:
    create(cluster, "found")
    with ClusterReader(
        find_cluster(ClusterOptions(controllers=(cluster.controller,))), environment={}
    ) as reader:
        snapshot = reader.open_snapshot(Subscribe(("found",)), ttl_ms=TTL_MS)
    assert snapshot.object_store.startswith("file://")
    assert snapshot.brokers == (cluster.kafka,)


def test_a_local_clusters_directory_is_enough_too(cluster: RunningCluster, tmp_path: Path) -> None:
    content = {
        "bootstrap": cluster.kafka,
        "controllers": [cluster.controller],
        "object_store": "file:///x",
        "wal": "",
    }
    (tmp_path / "cluster.json").write_text(json.dumps(content))
    found = find_cluster(ClusterOptions(data=str(tmp_path)))
    assert found == ClusterAddress((cluster.controller,), "file:///x", (cluster.kafka,))
    assert find_cluster(ClusterOptions(data=str(tmp_path), store="s3://b/p")).object_store == "s3://b/p"
    with pytest.raises(OptionError, match=r"^data: .*cannot be read"):
        find_cluster(ClusterOptions(data=str(tmp_path / "nowhere")))


def test_log_with_a_later_start(cluster: RunningCluster, reader: ClusterReader) -> None:
    create(cluster, "trimmed")
    produce(cluster, "trimmed", 200)
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    for future in admin.delete_records([confluent_kafka.TopicPartition("trimmed", 0, 77)]).values():
        future.result(DEADLINE_S)
    snapshot = wait_for_snapshot(
        reader, "trimmed", lambda each: (each.log_start_offset, each.committed_end_offset) == (77, 200)
    )
    assert rows_of(snapshot) == consumed(cluster, "trimmed")


def test_compacted_topic_during_cleaning(cluster: RunningCluster, reader: ClusterReader) -> None:
    create(cluster, "compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    produce(cluster, "compacted", 400, keys=7)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        snapshot = reader.open_snapshot(Subscribe(("compacted",)), ttl_ms=TTL_MS)
        (partition,) = snapshot.partitions
        rows = rows_of(snapshot)
        assert partition.log_start_offset == 0, "cleaning never looks like a log start"
        if partition.committed_end_offset == 400:
            assert {key for _, key in rows} == {b"%d" % key for key in range(7)}
            assert rows[-1][0] == 399
        streams = {part.stream_id for part in partition.segments}
        reader.close_lease(snapshot.lease_id)
        if len(streams) == 2 and partition.committed_end_offset == 400:
            break
        assert time.monotonic() < deadline, partition
    produce(cluster, "compacted", 50, keys=3)
    snapshot = wait_for_snapshot(reader, "compacted", lambda each: each.committed_end_offset == 450)
    rows = rows_of(snapshot)
    assert rows == sorted(rows)
    assert set(consumed(cluster, "compacted")) <= set(rows), (
        "what is cleaned since the snapshot may be in it still"
    )


def test_a_snapshot_is_of_its_moment(cluster: RunningCluster, reader: ClusterReader) -> None:
    create(cluster, "growing")
    produce(cluster, "growing", 30)
    before = wait_for_snapshot(reader, "growing", lambda each: each.committed_end_offset == 30)
    produce(cluster, "growing", 30)
    after = wait_for_snapshot(reader, "growing", lambda each: each.committed_end_offset == 60)
    assert [offset for offset, _ in rows_of(before)] == list(range(30))
    assert [offset for offset, _ in rows_of(after)] == list(range(60)), (
        "what was folded before is gone on from"
    )


def test_which_partitions(cluster: RunningCluster, reader: ClusterReader) -> None:
    create(cluster, "chosen-one", partitions=3)
    create(cluster, "chosen-two", partitions=1)
    assigned = reader.open_snapshot(Assign({"chosen-one": (0, 2)}), ttl_ms=TTL_MS)
    assert [each.partition for each in assigned.partitions] == [0, 2]
    matched = reader.open_snapshot(SubscribePattern("chosen-.*"), ttl_ms=TTL_MS)
    assert [(each.topic, each.partition) for each in matched.partitions] == [
        ("chosen-one", 0),
        ("chosen-one", 1),
        ("chosen-one", 2),
        ("chosen-two", 0),
    ]
    assert reader.open_snapshot(SubscribePattern("none-.*"), ttl_ms=TTL_MS).partitions == ()


def test_a_missing_topic_is_named_and_keeps_no_lease(cluster: RunningCluster, tmp_path: Path) -> None:
    notes = LeaseNotes(tmp_path)
    with ClusterReader(find_cluster(ClusterOptions(bootstrap=(cluster.kafka,))), notes=notes) as reader:
        with pytest.raises(TopicMissingError, match=r"^subscribe: there is no topic nowhere"):
            reader.open_snapshot(Subscribe(("nowhere",)), ttl_ms=TTL_MS)
        assert list(notes.noted()) == []
        create(cluster, "small")
        with pytest.raises(
            TopicMissingError, match=r"^assign: topic small has no partition 4; it has 0 to 0"
        ):
            reader.open_snapshot(Assign({"small": (4,)}), ttl_ms=TTL_MS)
        assert list(notes.noted()) == []


def test_another_store_is_no_lease_that_is_over(
    cluster: RunningCluster, reader: ClusterReader, tmp_path: Path
) -> None:
    create(cluster, "elsewhere")
    produce(cluster, "elsewhere", 20)
    wait_for_snapshot(reader, "elsewhere", lambda each: each.committed_end_offset == 20)
    (tmp_path / "objects").mkdir()
    given = ClusterOptions(bootstrap=(cluster.kafka,), store=f"file://{tmp_path}")
    with (
        ClusterReader(find_cluster(given), environment={}) as other,
        pytest.raises(StoredDataError, match=r"^store: .*no such object. The cluster's metadata refer to it"),
    ):
        other.open_snapshot(Subscribe(("elsewhere",)), ttl_ms=TTL_MS)


def test_unreachable_cluster() -> None:
    with pytest.raises(
        ClusterUnreachableError, match=r"^kafka.bootstrap.servers: no broker answers \(127.0.0.1:1: "
    ):
        find_cluster(ClusterOptions(bootstrap=("127.0.0.1:1",)))
    silent = ClusterAddress(("127.0.0.1:1",), "file:///x")
    with (
        ClusterReader(silent, environment={}, answer_s_max=0.3) as reader,
        pytest.raises(
            ClusterUnreachableError,
            match=r"^controllers: no answer from 127.0.0.1:1 .*is the cluster running",
        ),
    ):
        reader.open_snapshot(Subscribe(("t",)), ttl_ms=TTL_MS)


def test_expired_lease_is_named(cluster: RunningCluster, reader: ClusterReader) -> None:
    create(cluster, "leased")
    snapshot = reader.open_snapshot(Subscribe(("leased",)), ttl_ms=TTL_MS)
    assert reader.renew(snapshot.lease_id, 2 * TTL_MS) > snapshot.lease.leased_until_ms
    reader.close_lease(snapshot.lease_id)
    reader.close_lease(snapshot.lease_id)
    with pytest.raises(SnapshotExpiredError, match=rf"^snapshot lease {snapshot.lease_id} is over"):
        reader.renew(snapshot.lease_id, TTL_MS)


def test_keeper_renews_recorded_leases_and_closes_them_at_the_end(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    create(cluster, "kept")
    address = find_cluster(ClusterOptions(bootstrap=(cluster.kafka,)))
    directory = tmp_path / "leases"
    directory.mkdir()
    keeper = LeaseKeeper(directory)
    try:
        with ClusterReader(address, environment={LEASES_VARIABLE: str(directory)}) as worker:
            snapshot = worker.open_snapshot(Subscribe(("kept",)), ttl_ms=KEPT_TTL_MS)
        with ClusterReader(address, environment={}) as other:
            alone = other.open_snapshot(Subscribe(("kept",)), ttl_ms=500)
            deadline = time.monotonic() + DEADLINE_S
            while leased_until_ms(cluster, alone.lease_id):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        while (until_ms := leased_until_ms(cluster, snapshot.lease_id)) == snapshot.lease.leased_until_ms:
            assert time.monotonic() < deadline, "the lease was not renewed"
            time.sleep(0.1)
        assert until_ms > snapshot.lease.leased_until_ms, "it lives longer than it was given"
    finally:
        keeper.close()
    assert not leased_until_ms(cluster, snapshot.lease_id)
    assert not directory.exists()


def leased_until_ms(cluster: RunningCluster, lease_id: int) -> int:
    """Return the end of the lease in cluster time, 0 if it has ended.

    The query changes nothing, because a renewal of one millisecond ends before the current lease.
    """

    async def ask() -> int:
        network = GrpcNetwork()
        try:
            client = ClusterClient(network, SystemClock(), (cluster.controller,))
            return (await client.renew_snapshot(lease_id, 1, timeout_s=DEADLINE_S)).leased_until_ms
        except OperationError as error:
            if error.code != error_pb2.ERROR_CODE_SNAPSHOT_EXPIRED:
                raise
            return 0
        finally:
            await network.close()

    return asyncio.run(ask())


def test_least_recently_used_lease_expires(tmp_path: Path) -> None:
    notes = LeaseNotes(tmp_path)
    lease = Lease(0, "", 600_000, 1, 0, 0, ("c:1",))
    for number in range(LEASES_MAX + 2):
        notes.note(replace(lease, lease_id=number))
    # The file system's clock may be coarser than the time between two of them.
    for each in notes.noted():
        os.utime(each.path, ns=(each.lease_id, each.lease_id))
    notes.use(lease)
    keeper = LeaseKeeper(tmp_path)
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(left := {each.lease_id for each in notes.noted()}) > LEASES_MAX:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert left == {0, *range(3, LEASES_MAX + 2)}
    finally:
        for number in left:
            notes.forget(number, lease.controllers)
        keeper.close()


def test_an_executors_machine_has_the_variable_but_no_directory(tmp_path: Path) -> None:
    notes = LeaseNotes.of_environment({LEASES_VARIABLE: str(tmp_path / "gone")})
    lease = Lease(1, "", 1, 1, 0, 0, ("c:1",))
    notes.note(lease)
    notes.use(lease)
    notes.forget(1, lease.controllers)
    assert list(notes.noted()) == []


def test_failed_tail_lookup_leaves_no_lease(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper would renew it until the driver exits, and all deletions of the cluster would wait."""
    monkeypatch.setenv(LEASES_VARIABLE, str(tmp_path))
    create(cluster, "tailless")
    address = find_cluster(ClusterOptions(bootstrap=(cluster.kafka,)))
    given = {"kafka.bootstrap.servers": cluster.kafka, "subscribe": "tailless", "tail": "broker"}
    good = parse_options(given, streaming=False)
    kept = open_snapshot_with_tails(good)
    assert [each.lease_id for each in LeaseNotes(tmp_path).noted()] == [kept.lease_id]
    close_snapshot(kept, good)

    bad = replace(
        good,
        cluster=replace(
            good.cluster, controllers=address.controllers, bootstrap=("nowhere",), store=address.object_store
        ),
    )
    with pytest.raises(OptionError, match="'nowhere' is not HOST:PORT"):
        open_snapshot_with_tails(bad)
    assert list(tmp_path.glob("*.lease")) == []
