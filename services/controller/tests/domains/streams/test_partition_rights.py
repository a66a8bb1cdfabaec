"""Only its leader creates, opens and deletes the streams and keys of a partition."""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.shared_rules import move_records

from services.controller.tests.moves_kit import Moving


def _create(topic_id: bytes, partition: str = "0") -> wire.CreateStreams:
    tags = {"topic": topic_id.hex(), "partition": partition, "kind": "time"}
    return wire.CreateStreams(streams=[wire.StreamTags(tags=tags)])


def _open(stream_id: int, epoch: int) -> wire.OpenStreams:
    return wire.OpenStreams(streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=epoch)])


def _elect(world: Moving, node_id: int) -> None:
    world.ledger.apply([move_records.elected(world.ledger.view, world.partition(), node_id)])  # type: ignore[arg-type]


def test_streams_and_keys_of_an_absent_topic_are_refused() -> None:
    """An open in progress while its topic is deleted leaves nothing behind."""
    world = Moving(partitions=1)
    broker, gone = world.leader(), world.topic_id
    (made,) = world.ledger.do(broker, create_streams=_create(gone)).streams_created.stream_ids
    key = wire.PutKey(key=f"partition/{gone.hex()}/0", value=b"1")
    world.ledger.do(broker, delete_topic=wire.DeleteTopic(topic_id=gone))

    assert world.ledger.refusal(broker, create_streams=_create(gone)) == "TOPIC_NOT_FOUND"
    assert world.ledger.refusal(broker, put_key=key) == "TOPIC_NOT_FOUND"
    assert world.ledger.refusal(broker, put_keys=wire.PutKeys(puts=[key])) == "TOPIC_NOT_FOUND"
    assert world.ledger.refusal(broker, open_streams=_open(made, 0)) == "STREAM_NOT_FOUND"


def test_streams_and_keys_of_another_brokers_partition_are_refused() -> None:
    world = Moving(partitions=1)
    other = world.others()[0]
    key = wire.PutKey(key=f"partition/{world.topic_id.hex()}/0", value=b"1")
    assert world.ledger.refusal(other, create_streams=_create(world.topic_id)) == "STREAM_FENCED"
    assert world.ledger.refusal(other, put_key=key) == "STREAM_FENCED"
    absent = _create(world.topic_id, partition="7")
    assert world.ledger.refusal(world.leader(), create_streams=absent) == "TOPIC_NOT_FOUND"


def test_tags_and_keys_without_a_partition_are_refused() -> None:
    world = Moving(partitions=1)
    broker = world.leader()
    assert world.ledger.refusal(broker, create_streams=_create(world.topic_id, "-1")) == "INVALID_REQUEST"
    body = wire.CreateStreams(streams=[wire.StreamTags(tags={"topic": "orders", "partition": "0"})])
    assert world.ledger.refusal(broker, create_streams=body) == "INVALID_REQUEST"
    for key in ("partition/", "partition/zz/0", f"partition/{world.topic_id.hex()}"):
        assert world.ledger.refusal(broker, put_key=wire.PutKey(key=key, value=b"1")) == "INVALID_REQUEST"


def test_a_late_open_of_a_former_leader_is_refused() -> None:
    """All streams are closed after two elections; the request of the first election's leader arrives last."""
    world = Moving(partitions=1)
    first, second = world.others()
    world.close()
    stream_id = world.streams[0][0]
    _elect(world, first.node_id)
    late = _open(stream_id, world.partition().leader_epoch)
    _elect(world, second.node_id)
    assert world.ledger.refusal(first, open_streams=late) == "STREAM_FENCED"
    world.open()
    assert world.owner() == second


def test_a_leader_opens_streams_only_at_its_current_epoch() -> None:
    world = Moving(partitions=1)
    leader = world.leader()
    world.close()
    _elect(world, leader.node_id)
    epoch = world.partition().leader_epoch
    stream_id = world.streams[0][0]
    assert world.ledger.refusal(leader, open_streams=_open(stream_id, epoch + 1)) == "STREAM_FENCED"
    world.open()
    # The answer was lost and the broker repeats the request while the next election is committed:
    # the repeat changes nothing.
    assert world.ledger.decide(leader, open_streams=_open(stream_id, epoch)) == []


def test_a_former_leader_cannot_delete_a_closed_stream_of_a_partition() -> None:
    world = Moving(partitions=1)
    former = world.leader()
    world.close()
    _elect(world, world.others()[0].node_id)
    deletion = wire.DeleteStreams(stream_ids=[world.streams[0][1]])
    assert world.ledger.refusal(former, delete_streams=deletion) == "STREAM_FENCED"
    assert len(world.ledger.decide(world.leader(), delete_streams=deletion)) == 1


def test_any_broker_may_delete_a_stream_of_a_deleted_topic() -> None:
    world = Moving(partitions=1)
    tags = {"topic": "ab" * 16, "partition": "0"}
    created = records_pb2.StreamCreated(stream_id=1 << 40, tags=tags)
    world.ledger.apply([records_pb2.Record(stream_created=created)])
    deletion = wire.DeleteStreams(stream_ids=[1 << 40])
    assert len(world.ledger.decide(world.others()[0], delete_streams=deletion)) == 1
