"""Trims and deletions commit small records; the reclaim duty destroys and deletes what they left, a
limited number of rows per batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.objects import reclaim_duty as reclaim_driver
from ponor_controller.domains.objects.dead_objects import PIECES_PER_VISIT
from ponor_controller.domains.objects.reclaim_duty import (
    DESTROYED_PER_STEP,
    PAUSE_S,
    PIECES_DESTROYED_PER_STEP,
    PURGED_PER_STEP,
    TOPICS_PER_STEP,
    VISITS_PER_STEP,
)
from ponor_controller.kernel.operation import Caller
from ponor_metadata.image.overlay import OverlayTable
from ponor_metadata.image.stream_object_table import StreamObjectTable
from ponor_metadata.image.stream_set_object_table import StreamSetObjectTable
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS, ObjectState
from ponor_metadata.nouns.streams import RECLAIMS, STREAM_OBJECTS, STREAMS
from ponor_metadata.nouns.topics import DELETIONS
from ponor_metadata.tables.ranges import DecodedRanges
from ponor_runtime.identity import ObjectId

from services.controller.tests.ledger import Ledger, new_reclaim_duty, upload_body


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


def make_topic(ledger: Ledger, broker: Caller, name: str = "t", partitions: int = 1) -> bytes:
    body = wire.CreateTopic(name=name, partitions=partitions, replication_factor=-1)
    return ledger.do(broker, create_topic=body).topic_held.topic_id


def make_streams(ledger: Ledger, broker: Caller, topic: bytes, count: int, partition: int = 0) -> list[int]:
    """Streams of a partition, open at epoch 0."""
    ids = ledger.create_streams(broker, count, topic=topic.hex(), partition=str(partition))
    for stream_id in ids:
        ledger.open(broker, stream_id, 0)
    return ids


def fill(ledger: Ledger, broker: Caller, stream_id: int, objects: int) -> list[int]:
    """Stream objects of one offset each."""
    end = ledger.stream(stream_id).end_offset
    ids = ledger.prepare(broker, objects)
    ranges = [(stream_id, 0, end + n, end + n + 1) for n in range(objects)]
    at_once = ledger.settings.commit_objects_max
    for at in range(0, objects, at_once):
        body = upload_body(ids[at : at + at_once], (), ranges[at : at + at_once])
        ledger.do(broker, commit_upload=body)
    return ids


def trim(ledger: Ledger, broker: Caller, *starts: tuple[int, int]) -> None:
    states = [wire.StreamState(stream_id=each, stream_epoch=0, start_offset=start) for each, start in starts]
    ledger.do(broker, trim_streams=wire.TrimStreams(streams=states))


def delete(ledger: Ledger, broker: Caller, topic: bytes) -> None:
    ledger.do(broker, delete_topic=wire.DeleteTopic(topic_id=topic))


def require_all_reclaimed(ledger: Ledger) -> None:
    assert len(ledger.image[RECLAIMS]) == len(ledger.image[DELETIONS]) == 0
    validate(ledger.image)


def batches_of(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """Return the contents of each later batch: deleted streams and keys, destroyed objects."""
    found: list[Counter[str]] = []
    apply = ledger.apply

    def counting(records: list[records_pb2.Record]) -> None:
        counts = Counter(str(record.WhichOneof("kind")) for record in records)
        counts["destroyed"] = sum(len(record.objects_destroyed.object_ids) for record in records)
        found.append(counts)
        apply(records)

    monkeypatch.setattr(ledger, "apply", counting)
    return found


def test_a_large_topic_is_deleted_immediately_and_its_objects_in_limited_batches(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(ledger, broker)
    streams = make_streams(ledger, broker, topic, 3)
    for stream_id in streams:
        fill(ledger, broker, stream_id, 700)
    batches = batches_of(ledger, monkeypatch)
    delete(ledger, broker, topic)
    assert batches == [Counter(topic_deleted=1, destroyed=0)]
    assert make_topic(ledger, broker) != topic, "the name is free"
    ledger.reclaim()
    assert max(each["destroyed"] for each in batches) == DESTROYED_PER_STEP
    assert sum(each["destroyed"] for each in batches) == 2_100
    require_all_reclaimed(ledger)


def test_streams_and_keys_of_a_topic_are_deleted_in_limited_batches(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(ledger, broker, partitions=300)
    for partition in range(300):
        ledger.create_streams(broker, 2, topic=topic.hex(), partition=str(partition))
        ledger.do(broker, put_key=wire.PutKey(key=f"partition/{topic.hex()}/{partition}", value=b"x"))
    delete(ledger, broker, topic)
    batches = batches_of(ledger, monkeypatch)
    ledger.reclaim()
    assert max(each["stream_deleted"] + each["key_deleted"] for each in batches) == PURGED_PER_STEP
    assert len(ledger.image[STREAMS]) == len(ledger.image[KEYS]) == 0
    require_all_reclaimed(ledger)


def test_small_topics_share_batches(ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [make_topic(ledger, broker, f"t{number}") for number in range(3 * TOPICS_PER_STEP)]
    for topic in topics:
        make_streams(ledger, broker, topic, 2)
        delete(ledger, broker, topic)
    batches = batches_of(ledger, monkeypatch)
    ledger.reclaim()
    assert not len(ledger.image[DELETIONS])
    assert not len(ledger.image[STREAMS])
    assert max(each["stream_deleted"] for each in batches) == 2 * TOPICS_PER_STEP
    assert sum(1 for each in batches if each["stream_deleted"] or each["topic_purged"]) == 6
    require_all_reclaimed(ledger)


def test_streams_of_a_topic_being_deleted_are_absent_for_all_operations(
    ledger: Ledger, broker: Caller
) -> None:
    topic = make_topic(ledger, broker)
    opened, waiting = ledger.create_streams(broker, 2, topic=topic.hex(), partition="0")
    ledger.open(broker, opened, 0)
    late = ledger.prepare(broker, 1)
    delete(ledger, broker, topic)
    again = wire.OpenStreams(streams=[wire.OpenStream(stream_id=waiting, stream_epoch=0)])
    assert ledger.refusal(broker, open_streams=again) == "STREAM_NOT_FOUND"
    closing = wire.CloseStreams(streams=[wire.StreamState(stream_id=opened, stream_epoch=0, end_offset=5)])
    assert ledger.refusal(broker, close_streams=closing) == "STREAM_NOT_FOUND"
    key = wire.PutKey(key=f"partition/{topic.hex()}/0", value=b"x")
    assert ledger.refusal(broker, put_key=key) == "TOPIC_NOT_FOUND"
    ledger.do(broker, commit_upload=upload_body(late, (), [(opened, 0, 0, 5)]))
    assert ledger.object(late[0]).state is ObjectState.DESTROYED
    ledger.reclaim()
    assert len(ledger.image[STREAMS]) == 0
    require_all_reclaimed(ledger)


def test_another_leader_continues(ledger: Ledger, broker: Caller) -> None:
    topic = make_topic(ledger, broker)
    streams = make_streams(ledger, broker, topic, 2)
    for stream_id in streams:
        fill(ledger, broker, stream_id, 600)
    delete(ledger, broker, topic)
    leaders = 0
    while len(ledger.image[RECLAIMS]) or len(ledger.image[DELETIONS]):
        driver = new_reclaim_duty(ledger)  # has no state of the others
        driver.step()
        driver.step()
        leaders += 1
        validate(ledger.image)
    assert leaders > 2
    assert len(ledger.image[STREAM_OBJECTS]) == 0
    require_all_reclaimed(ledger)


def test_a_stream_trimmed_during_a_search_is_searched_again(ledger: Ledger, broker: Caller) -> None:
    (stream_id,) = make_streams(ledger, broker, make_topic(ledger, broker), 1)
    ids = fill(ledger, broker, stream_id, 900)
    driver = new_reclaim_duty(ledger)
    trim(ledger, broker, (stream_id, 400))
    assert driver.step() == PAUSE_S
    trim(ledger, broker, (stream_id, 850))
    while driver.step() == PAUSE_S:
        pass
    states = [ledger.object(each).state for each in ids]
    assert states == [ObjectState.DESTROYED] * 850 + [ObjectState.COMMITTED] * 50
    require_all_reclaimed(ledger)


def test_sources_of_a_compaction_in_progress_are_not_destroyed_twice(ledger: Ledger, broker: Caller) -> None:
    (stream_id,) = make_streams(ledger, broker, make_topic(ledger, broker), 1)
    ids = fill(ledger, broker, stream_id, 3)
    trim(ledger, broker, (stream_id, 3))
    ledger.hold = True
    destroyed = records_pb2.ObjectsDestroyed(object_ids=ids[:1], destroyed_at_ms=ledger.now_ms)
    ledger.apply([records_pb2.Record(objects_destroyed=destroyed)])  # as a swap would, not committed yet
    new_reclaim_duty(ledger).step()
    ledger.hold = False
    ledger.commit()
    assert {ledger.object(each).state for each in ids} == {ObjectState.DESTROYED}
    ledger.reclaim()
    require_all_reclaimed(ledger)


def test_a_set_object_is_searched_once_for_all_its_streams(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = make_streams(ledger, broker, make_topic(ledger, broker), 100)
    for turn in range(70):  # more than the number of decoded ones that the image keeps
        ledger.upload(broker, [(each, 0, turn, turn + 1) for each in streams])
    decoded: Counter[str] = Counter()
    pieces_of = StreamSetObjectTable.pieces_of
    monkeypatch.setattr(StreamSetObjectTable, "pieces_of", counted(pieces_of, decoded, "pieces_of"))
    trim(ledger, broker, *((each, 60) for each in streams))
    ledger.reclaim()
    assert decoded["pieces_of"] <= 70 + 60, "once each to look, once more for what is destroyed"
    assert len(ledger.image[STREAM_SET_OBJECTS]) == 10
    require_all_reclaimed(ledger)


def test_a_step_visits_a_limited_number_of_rows(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = make_streams(ledger, broker, make_topic(ledger, broker), 1_000)
    for turn in range(4):
        ledger.upload(broker, [(each, 0, turn, turn + 1) for each in streams])
    looks: Counter[str] = Counter()
    monkeypatch.setattr(OverlayTable, "get", counted(OverlayTable.get, looks, "overlay"))
    monkeypatch.setattr(StreamObjectTable, "get", counted(StreamObjectTable.get, looks, "stream objects"))
    trim(ledger, broker, *((each, 4) for each in streams))
    driver, per_step = new_reclaim_duty(ledger), []
    search = driver._search

    def counted_search(each: Any) -> Any:
        looks.clear()
        found = search(each)
        per_step.append(sum(looks.values()))
        return found

    monkeypatch.setattr(driver, "_search", counted_search)
    while driver.step() == PAUSE_S:
        pass
    assert len(per_step) >= 4 * 1_000 // VISITS_PER_STEP
    assert max(per_step) <= VISITS_PER_STEP + DESTROYED_PER_STEP
    require_all_reclaimed(ledger)


def test_wide_set_objects_are_destroyed_a_few_at_a_time(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim_driver, "PIECES_DESTROYED_PER_STEP", 150)
    assert PIECES_DESTROYED_PER_STEP > 150
    streams = make_streams(ledger, broker, make_topic(ledger, broker), 100)
    for turn in range(3):
        ledger.upload(broker, [(each, 0, turn, turn + 1) for each in streams])
    batches = batches_of(ledger, monkeypatch)
    trim(ledger, broker, *((each, 3) for each in streams))
    ledger.reclaim()
    assert [each["destroyed"] for each in batches if each["destroyed"]] == [1, 1, 1]
    require_all_reclaimed(ledger)


def test_a_visit_costs_the_same_after_many_batches_of_wide_objects(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each batch that stopped before a wide object made every later visit slower; after
    thousands of batches a step took longer than an election timeout.
    """
    monkeypatch.setattr(reclaim_driver, "PIECES_DESTROYED_PER_STEP", 1)
    first, second = make_streams(ledger, broker, make_topic(ledger, broker), 2)
    for turn in range(200):
        ledger.upload(broker, [(first, 0, turn, turn + 1), (second, 0, turn, turn + 1)])
    trim(ledger, broker, (first, 200), (second, 200))
    driver = new_reclaim_duty(ledger)
    began_with = None
    while driver.step() == PAUSE_S:
        if driver._pass is not None:
            began_with = began_with or driver._pass.found
            assert driver._pass.found is began_with, "the search is not wrapped once more"
    assert began_with is not None
    assert len(ledger.image[STREAM_SET_OBJECTS]) == 0
    require_all_reclaimed(ledger)


def test_a_step_decodes_a_limited_number_of_pieces_of_live_set_objects(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = make_streams(ledger, broker, make_topic(ledger, broker), 1_000)
    for turn in range(70):
        ledger.upload(broker, [(each, 0, turn, turn + 1) for each in streams])
    monkeypatch.setattr(reclaim_driver, "VISITS_PER_STEP", 100)
    decoded = [0]
    pieces_of = StreamSetObjectTable.pieces_of

    def counted_pieces(table: StreamSetObjectTable, key: ObjectId) -> DecodedRanges | None:
        pieces = pieces_of(table, key)
        decoded[-1] += 0 if pieces is None else len(pieces)
        return pieces

    monkeypatch.setattr(StreamSetObjectTable, "pieces_of", counted_pieces)
    trim(ledger, broker, (streams[-1], 70))  # every object stays live because of its first piece
    driver = new_reclaim_duty(ledger)
    while driver.step() == PAUSE_S:
        decoded.append(0)
    assert sum(decoded) >= 70 * 1_000
    assert max(decoded) <= 100 * PIECES_PER_VISIT
    require_all_reclaimed(ledger)


def test_continuous_topic_deletions_do_not_delay_trims(ledger: Ledger, broker: Caller) -> None:
    """Before, purges came first, so trimmed data kept its objects as long as topics were deleted."""
    topic = make_topic(ledger, broker)
    (stream,) = make_streams(ledger, broker, topic, 1)
    fill(ledger, broker, stream, 10)
    trim(ledger, broker, (stream, 10))
    driver = new_reclaim_duty(ledger)
    for number in range(10):
        gone = make_topic(ledger, broker, f"gone-{number}")
        make_streams(ledger, broker, gone, 1)
        delete(ledger, broker, gone)
        driver.step()
    assert len(ledger.image[DELETIONS]), "topics are still being deleted"
    assert not any(row.stream_id == stream for row in ledger.image[RECLAIMS])
    ledger.reclaim()
    require_all_reclaimed(ledger)


def test_orphans_are_found_and_deleted(ledger: Ledger, broker: Caller) -> None:
    kept = make_topic(ledger, broker, "kept")
    (living,) = make_streams(ledger, broker, kept, 1)
    ledger.do(broker, put_key=wire.PutKey(key=f"partition/{kept.hex()}/0", value=b"x"))
    (untagged,) = ledger.create_streams(broker)
    absent = bytes(range(16))
    created = records_pb2.StreamCreated(
        stream_id=untagged + 1, tags={"topic": absent.hex(), "partition": "0"}
    )
    key = records_pb2.KeyPut(key=f"partition/{(b'y' * 16).hex()}/3", value=b"x")
    ledger.apply([records_pb2.Record(stream_created=created), records_pb2.Record(key_put=key)])
    ledger.reclaim()
    assert [row.stream_id for row in ledger.image[STREAMS]] == [living, untagged]
    assert [row.key for row in ledger.image[KEYS]] == [f"partition/{kept.hex()}/0"]
    require_all_reclaimed(ledger)


def test_creating_a_partition_needs_a_constant_number_of_lookups(
    ledger: Ledger, broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, because applying a partition once walked over all of its topic's."""
    looks: Counter[str] = Counter()
    monkeypatch.setattr(OverlayTable, "find", counted(OverlayTable.find, looks, "find"))
    make_topic(ledger, broker, partitions=500)
    assert looks["find"] <= 10


def counted(method: Callable[..., Any], looks: Counter[str], name: str) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        looks[name] += 1
        return method(*arguments)

    return counting
