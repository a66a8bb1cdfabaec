"""Unneeded objects: expired leases, delays, and claims that are confirmed or lost."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1.records_pb2 import NODE_ROLE_GC as GC
from ponor.metadata.v1.records_pb2 import IncarnationConfirmed, IncarnationRaised, Record
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.objects import OBJECTS
from ponor_runtime.identity import cluster_of_id
from s3stream.settings import COMMIT_OBJECTS_MAX, COMMIT_RANGES_MAX, PREPARED_IDS_MAX, StorageSettings

from services.controller.tests.ledger import Ledger, upload_body


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(settings=ControllerSettings(destroy_delay_ms=10_000, prepared_ttl_ms_max=50_000))


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


@pytest.fixture
def gc(ledger: Ledger) -> Caller:
    return ledger.register(1000, role=GC)


def _claim(ledger: Ledger, gc: Caller, limit: int = 100, ttl_ms: int = 1_000) -> list[int]:
    result = ledger.do(gc, claim_objects=wire.ClaimObjects(limit=limit, ttl_ms=ttl_ms))
    return [each.object_id for each in result.objects_granted.objects]


def _confirm(ids: list[int]) -> wire.ConfirmDeleted:
    return wire.ConfirmDeleted(object_ids=ids)


def _destroyed_object(ledger: Ledger, broker: Caller) -> int:
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 1)
    (single,) = ledger.upload(broker, stream_objects=[(stream, 1, 0, 5)])
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=[stream]))
    ledger.reclaim()
    return single


def test_ids_are_contiguous_unique_and_contain_the_clusters_ordinal(ledger: Ledger, broker: Caller) -> None:
    first, second = ledger.prepare(broker, 3), ledger.prepare(broker, 2)
    assert first + second == list(range(first[0], first[0] + 5))
    assert cluster_of_id(first[0]) == 7


def test_a_lease_is_limited_by_the_controller(ledger: Ledger, broker: Caller) -> None:
    body = wire.PrepareObjects(count=1, ttl_ms=10**9)
    reserved = ledger.do(broker, prepare_objects=body).objects_reserved
    assert reserved.expires_at_ms == ledger.now_ms + 50_000
    cluster = cluster_of(ledger.view)
    assert cluster is not None
    assert reserved.namespace == cluster.namespace


def test_invalid_reservations_are_refused(ledger: Ledger, broker: Caller, gc: Caller) -> None:
    for count, ttl_ms in ((0, 1), (-1, 1), (10_001, 1), (1, 0)):
        body = wire.PrepareObjects(count=count, ttl_ms=ttl_ms)
        assert ledger.refusal(broker, prepare_objects=body) == "INVALID_REQUEST"
    body = wire.PrepareObjects(count=1, ttl_ms=1)
    assert ledger.refusal(gc, prepare_objects=body) == "INVALID_REQUEST"


def test_an_object_of_a_dead_writer_is_collected_when_no_put_can_be_in_flight(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    (abandoned,) = ledger.prepare(broker, ttl_ms=5_000)
    ledger.now_ms += 5_000 + 10_000
    assert _claim(ledger, gc) == []
    ledger.now_ms += 1
    assert _claim(ledger, gc) == [abandoned]
    assert ledger.object(abandoned).state.name == "DESTROYED"
    ledger.do(gc, confirm_deleted=_confirm([abandoned]))
    assert abandoned not in ledger.image[OBJECTS]


def test_a_destroyed_object_waits_for_the_delay(ledger: Ledger, broker: Caller, gc: Caller) -> None:
    single = _destroyed_object(ledger, broker)
    ledger.now_ms += 10_000
    assert _claim(ledger, gc) == []
    ledger.now_ms += 1
    assert _claim(ledger, gc) == [single]


def test_a_claim_without_objects_writes_nothing(ledger: Ledger, broker: Caller, gc: Caller) -> None:
    ledger.prepare(broker)
    _destroyed_object(ledger, broker)
    assert ledger.decide(gc, claim_objects=wire.ClaimObjects(limit=10, ttl_ms=1)) == []


def test_after_a_forced_recovery_nothing_is_claimed_before_its_confirmation(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    single = _destroyed_object(ledger, broker)
    ledger.prepare(broker)
    ledger.now_ms += 60_000
    ledger.apply([Record(incarnation_raised=IncarnationRaised(incarnation=1))])
    assert _claim(ledger, gc) == []
    ledger.apply([Record(incarnation_confirmed=IncarnationConfirmed(incarnation=1))])
    assert _claim(ledger, gc)[0] == single


def test_a_claim_belongs_to_one_process_until_it_expires(ledger: Ledger, broker: Caller, gc: Caller) -> None:
    single = _destroyed_object(ledger, broker)
    ledger.now_ms += 10_001
    other = ledger.register(1001, role=GC)
    assert _claim(ledger, gc, ttl_ms=1_000) == [single]
    assert _claim(ledger, other) == []
    assert ledger.refusal(other, confirm_deleted=_confirm([single])) == "OBJECT_NOT_FOUND"

    ledger.now_ms += 1_001
    assert ledger.refusal(gc, confirm_deleted=_confirm([single])) == "OBJECT_NOT_FOUND"
    assert _claim(ledger, other) == [single]
    ledger.do(other, confirm_deleted=_confirm([single]))
    assert ledger.decide(gc, confirm_deleted=_confirm([single])) == [], "confirmed already: nothing to do"


def test_a_restarted_collector_waits_for_its_own_old_claim(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    single = _destroyed_object(ledger, broker)
    ledger.now_ms += 10_001
    assert _claim(ledger, gc, ttl_ms=1_000) == [single]
    restarted = ledger.register(1000, role=GC)
    assert _claim(ledger, restarted) == []
    assert ledger.refusal(restarted, confirm_deleted=_confirm([single])) == "OBJECT_NOT_FOUND"
    ledger.now_ms += 1_001
    assert _claim(ledger, restarted) == [single]


def test_the_oldest_objects_are_claimed_first_up_to_the_requested_number(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    old = [_destroyed_object(ledger, broker) for _ in range(3)]
    ledger.now_ms += 1
    young = [_destroyed_object(ledger, broker) for _ in range(2)]
    ledger.now_ms += 20_000
    assert _claim(ledger, gc, limit=2) == old[:2]
    assert _claim(ledger, gc, limit=2) == [old[2], young[0]]
    assert _claim(ledger, gc, limit=2) == [young[1]]


def test_committed_objects_are_never_claimed(ledger: Ledger, broker: Caller, gc: Caller) -> None:
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 1)
    ledger.upload(broker, stream_objects=[(stream, 1, 0, 5)])
    ledger.now_ms += 10**9
    assert _claim(ledger, gc) == []


def test_a_proposed_uncommitted_claim_is_not_granted_again(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    single = _destroyed_object(ledger, broker)
    ledger.now_ms += 10_001
    ledger.hold = True
    assert _claim(ledger, gc) == [single]
    assert _claim(ledger, gc) == []
    ledger.commit()
    assert _claim(ledger, gc) == []


def test_only_gc_nodes_claim(ledger: Ledger, broker: Caller) -> None:
    body = wire.ClaimObjects(limit=1, ttl_ms=1)
    assert ledger.refusal(broker, claim_objects=body) == "INVALID_REQUEST"


def test_the_size_of_a_commit_is_limited(ledger: Ledger, broker: Caller) -> None:
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 1)
    objects_max, ranges_max = ledger.settings.commit_objects_max, ledger.settings.upload_ranges_max
    ids = ledger.prepare(broker, objects_max + 1)
    pieces = [(stream, 1, at, at + 1) for at in range(ranges_max + 1)]
    for body in (
        upload_body(ids, stream_objects=pieces[: objects_max + 1]),
        upload_body(ids, pieces),
        upload_body(ids, pieces[:-1], pieces[-1:]),
    ):
        assert ledger.refusal(broker, commit_upload=body) == "INVALID_REQUEST"
    ledger.do(broker, commit_upload=upload_body(ids, stream_objects=pieces[:objects_max]))


def test_brokers_and_compactors_respect_the_controllers_limits() -> None:
    settings, storage = ControllerSettings(), StorageSettings()
    assert settings.prepared_count_max >= max(PREPARED_IDS_MAX, COMMIT_OBJECTS_MAX + 1)
    assert settings.commit_objects_max >= COMMIT_OBJECTS_MAX
    assert settings.upload_ranges_max >= COMMIT_RANGES_MAX >= storage.commit_ranges_max
    assert settings.compaction.compaction_streams_max > storage.set_object_streams_max
