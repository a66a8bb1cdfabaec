"""Snapshot leases: the objects that they keep, and when the controller ends them."""

from __future__ import annotations

import logging

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import cluster_service_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.compaction.duty import STEP_S, CompactionDuty
from ponor_controller.domains.leases import duty as lease_driver
from ponor_controller.domains.leases.duty import LeaseDuty
from ponor_controller.domains.leases.operations import LeaseDecision, close_lease, open_lease, renew_lease
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings, SnapshotLeaseSettings
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ObjectId
from ponor_runtime.telemetry import Telemetry

from services.controller.tests.compacting import Worker, eager_ledger
from services.controller.tests.kernel.test_proposals import Leader
from services.controller.tests.ledger import Ledger, new_reclaim_duty

SETTINGS = SnapshotLeaseSettings(
    snapshot_lease_age_ms_max=100_000, snapshot_leases_max=2, snapshot_pinned_bytes_max=1_200
)


class AlwaysLeading:
    """The part of `Leading` that drivers use."""

    is_leading = True

    def on_change(self, listener: object) -> None:
        """Leadership never changes."""


LEADING: Leading = AlwaysLeading()  # type: ignore[assignment]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(settings=ControllerSettings(destroy_delay_ms=0, snapshot_leases=SETTINGS))


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return ledger.register(0)


@pytest.fixture
def gc(ledger: Ledger) -> Caller:
    return ledger.register(1_000, role=records_pb2.NODE_ROLE_GC)


def opens(ledger: Ledger, ttl_ms: int = 10_000, holder: str = "a reader") -> int:
    request = cluster_service_pb2.OpenSnapshot(holder=holder, ttl_ms=ttl_ms)
    decision = open_lease(request, ledger.view, ledger.now_ms, SETTINGS)
    ledger.apply(decision.records)
    return decision.row.lease_id


def renews(ledger: Ledger, lease_id: int, ttl_ms: int = 10_000) -> LeaseDecision:
    request = cluster_service_pb2.RenewSnapshot(lease_id=lease_id, ttl_ms=ttl_ms)
    decision = renew_lease(request, ledger.view, ledger.now_ms, SETTINGS)
    ledger.apply(decision.records)
    return decision


def closes(ledger: Ledger, lease_id: int) -> list[records_pb2.Record]:
    records = close_lease(cluster_service_pb2.CloseSnapshot(lease_id=lease_id), ledger.view)
    ledger.apply(records)
    return records


def written(ledger: Ledger, broker: Caller) -> tuple[int, int]:
    """A stream with one object of 500 bytes."""
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 1)
    (single,) = ledger.upload(broker, stream_objects=[(stream, 1, 0, 5)])
    return stream, single


def deletes(ledger: Ledger, broker: Caller, *streams: int) -> None:
    """Delete streams, and destroy objects that only they needed."""
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=streams))
    ledger.reclaim()


def claims(ledger: Ledger, gc: Caller) -> list[int]:
    body = wire.ClaimObjects(limit=100, ttl_ms=1)
    granted = ledger.do(gc, claim_objects=body).objects_granted
    return [each.object_id for each in granted.objects]


def test_objects_destroyed_under_a_lease_wait_for_its_end_and_earlier_ones_do_not(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    (before, old), (after, young) = written(ledger, broker), written(ledger, broker)
    deletes(ledger, broker, before)
    ledger.now_ms += 1
    first = opens(ledger)
    ledger.now_ms += 1
    deletes(ledger, broker, after)
    second = opens(ledger)
    ledger.now_ms += 5_000
    assert claims(ledger, gc) == [old]
    ledger.now_ms += 5
    closes(ledger, second)
    assert young not in claims(ledger, gc)
    closes(ledger, first)
    assert closes(ledger, first) == [], "closed already"
    ledger.now_ms += 5
    assert young in claims(ledger, gc)
    validate(ledger.image)


def test_a_lease_keeps_everything_from_its_first_millisecond(
    ledger: Ledger, broker: Caller, gc: Caller
) -> None:
    stream, single = written(ledger, broker)
    opens(ledger)
    deletes(ledger, broker, stream)
    ledger.now_ms += 5_000
    assert single not in claims(ledger, gc)


def test_a_proposed_uncommitted_lease_keeps_objects_too(ledger: Ledger, broker: Caller, gc: Caller) -> None:
    stream, single = written(ledger, broker)
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=[stream]))
    ledger.hold = True
    opens(ledger)
    new_reclaim_duty(ledger).step()
    destroyed = ledger.view[OBJECTS].get(ObjectId(single))
    assert destroyed is not None
    assert destroyed.state is ObjectState.DESTROYED
    ledger.now_ms += 5_000
    assert claims(ledger, gc) == []


def test_a_lease_is_renewed_up_to_the_maximum_age(ledger: Ledger) -> None:
    begun_ms = ledger.now_ms
    lease = opens(ledger, ttl_ms=1 << 40)
    row = ledger.image[SNAPSHOTS].get(lease)
    assert row is not None
    assert row.leased_until_ms == begun_ms + 100_000
    short = opens(ledger, ttl_ms=10)
    assert renews(ledger, short, 5).records == [], "a lease never shrinks"
    ledger.now_ms += 5
    assert renews(ledger, short, 50).row.leased_until_ms == begun_ms + 55
    ledger.now_ms = begun_ms + 54
    assert renews(ledger, short, 1 << 40).row.leased_until_ms == begun_ms + 100_000
    ledger.now_ms = begun_ms + 100_000
    with pytest.raises(OperationError, match="ended; open another") as refused:
        renews(ledger, short)
    assert refused.value.code == error_pb2.ERROR_CODE_SNAPSHOT_EXPIRED


def test_invalid_requests_are_refused(ledger: Ledger) -> None:
    for holder, ttl_ms in (("", 1), ("x" * 257, 1), ("a", 0)):
        with pytest.raises(OperationError) as refused:
            opens(ledger, ttl_ms, holder)
        assert refused.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    with pytest.raises(OperationError) as refused:
        renews(ledger, 99)
    assert refused.value.code == error_pb2.ERROR_CODE_SNAPSHOT_EXPIRED
    opens(ledger)
    opens(ledger)
    with pytest.raises(OperationError, match="2 snapshot leases exist") as refused:
        opens(ledger)
    assert refused.value.code == error_pb2.ERROR_CODE_OVERLOADED


# The duty


class DutyRig:
    """A leader with the duty, over a ledger with its own time."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.leader = Leader(ledger)
        self.telemetry = Telemetry()
        self.driver = LeaseDuty(self.leader.proposer, LEADING, SETTINGS, self.telemetry)
        self.pass_ms(0)

    def pass_ms(self, time_ms: int) -> None:
        self.leader.clock.ns += time_ms * 1_000_000
        self.ledger.now_ms = self.leader.proposer.now_ms()

    def step(self) -> float | None:
        wait_s = self.driver.step()
        self.leader.commit()
        return wait_s

    def broken(self) -> int:
        return sum(value for _, value in self.telemetry.counters("ponor_snapshot_leases_broken_total"))


def test_an_unrenewed_lease_ends_when_it_expires(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    rig = DutyRig(ledger)
    assert rig.step() is None
    lease = opens(ledger, ttl_ms=1_500, holder="spark-7")
    assert rig.step() == 1.0
    rig.pass_ms(1_000)
    assert rig.step() == pytest.approx(0.5)
    rig.pass_ms(500)
    with caplog.at_level(logging.INFO):
        assert rig.step() == 0
    assert "snapshot lease 1 of spark-7 was not renewed" in caplog.text
    assert lease not in ledger.image[SNAPSHOTS]
    assert rig.step() is None
    assert rig.broken() == 0


def test_a_lease_of_the_maximum_age_is_revoked_with_a_reason(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    rig = DutyRig(ledger)
    opens(ledger, ttl_ms=1 << 40, holder="spark-7")
    rig.pass_ms(100_000)
    rig.step()
    assert "ended snapshot lease 1 of spark-7: it lasted 100000 ms" in caplog.text
    assert (len(ledger.image[SNAPSHOTS]), rig.broken()) == (0, 1)


def test_the_oldest_lease_is_revoked_when_leases_keep_too_much(
    ledger: Ledger,
    broker: Caller,
    gc: Caller,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_driver, "ROWS_PER_STEP", 2)
    rig = DutyRig(ledger)
    objects = [written(ledger, broker) for _ in range(5)]
    deletes(ledger, broker, objects[0][0])
    rig.pass_ms(1)
    oldest = opens(ledger, ttl_ms=90_000, holder="spark-1")
    deletes(ledger, broker, objects[1][0], objects[2][0])
    rig.pass_ms(1)
    younger = opens(ledger, ttl_ms=90_000, holder="spark-2")
    assert rig.step() == 0, "there may be more to count"
    assert rig.step() == 1.0
    assert sum(value for _, value in rig.telemetry.gauges("ponor_snapshot_pinned_bytes")) == 1_000
    rig.pass_ms(1)
    deletes(ledger, broker, objects[3][0])
    rig.step()
    assert "ended snapshot lease 1 of spark-1: 1500 bytes were destroyed since it began" in caplog.text
    assert oldest not in ledger.image[SNAPSHOTS]
    for _ in range(3):
        rig.step()
    assert sum(value for _, value in rig.telemetry.gauges("ponor_snapshot_pinned_bytes")) == 500
    assert younger in ledger.image[SNAPSHOTS]
    rig.pass_ms(10)
    assert claims(ledger, gc) == [single for _, single in objects[:3]]
    with pytest.raises(OperationError, match="ended"):
        renews(ledger, oldest)


# The duty towards compaction


def test_a_task_without_sources_ends_after_its_worker_exited() -> None:
    ledger = eager_ledger()
    broker, worker = ledger.register(0), Worker(ledger)
    (stream,) = ledger.create_streams(broker)
    ledger.open(broker, stream, 1)
    for start in (0, 5):
        ledger.upload(broker, [(stream, 1, start, start + 5)])
    leader, telemetry = Leader(ledger), Telemetry()
    driver = CompactionDuty(
        leader.proposer,
        ledger.survey,
        ledger.garbage_ratio,
        ledger.compactions,
        LEADING,
        ledger.settings.compaction,
        telemetry,
    )
    ledger.now_ms = leader.proposer.now_ms()
    assert driver.step() == 10.0, "a survey of two objects is done at once"
    shown = {
        name: sum(value for _, value in telemetry.gauges(f"ponor_compaction_{name}"))
        for name in ("backlog_objects", "backlog_bytes", "tasks")
    }
    assert shown == {"backlog_objects": 2, "backlog_bytes": 2_000, "tasks": 0}
    worker.lease(ttl_ms=1_000)
    deletes(ledger, broker, stream)
    driver.step()
    assert len(ledger.view[COMPACTIONS]) == 1, "its worker is running and is refused"
    ledger.fence(worker.caller)
    driver.step()
    leader.commit()
    assert not list(ledger.image[COMPACTIONS])
    assert STEP_S < 1
