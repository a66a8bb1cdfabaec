"""Share partitions: examples of Kafka's rules, on batches of a log."""

from __future__ import annotations

import pytest
from ponor_broker.coordination.share_persister import DeliveryState, ShareState, StateBatch
from ponor_broker.share_partitions.acknowledgement import (
    AcknowledgedBatch,
    AcknowledgementError,
    AcknowledgeType,
    check_form,
)
from ponor_broker.share_partitions.fetched_batches import FetchedBatch, fetched_batches
from ponor_broker.share_partitions.settings import DeliveryRules
from ponor_broker.share_partitions.share_partition import (
    AcquireLimits,
    SharePartition,
    ShareStateCorruptError,
)
from ponor_kafka.control_records import ControlType, EndMarker, build_end_marker
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import NewRecord, build_batch

RULES = DeliveryRules(lock_ms=30_000, deliveries_max=5, in_flight_max=2_000)
WHOLE_BATCHES = AcquireLimits(500, 500)
ACCEPT, RELEASE, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW


def batch(first: int, last: int, *, is_gap: bool = False) -> FetchedBatch:
    return FetchedBatch(first, last, is_gap, memoryview(b""))


def acquire(
    share: SharePartition,
    member: str,
    *read: FetchedBatch,
    limits: AcquireLimits = WHOLE_BATCHES,
    now_ms: int = 0,
    rules: DeliveryRules = RULES,
) -> list[tuple[int, int, int]]:
    ranges = share.acquire(member, share.fetch_offset, read, limits, rules, now_ms)
    return [(first, last, delivery_count) for first, last, delivery_count in ranges]


def write(share: SharePartition) -> list[StateBatch]:
    written = share.begin_write()
    share.end_write(is_durable=True)
    return list(written.batches)


def test_exactly_the_record_that_was_not_acknowledged_is_delivered_again() -> None:
    share = SharePartition(ShareState(0, 5))
    assert acquire(share, "m", batch(5, 8)) == [(5, 8, 1)]
    for offset in (5, 7, 8):
        share.acknowledge("m", [AcknowledgedBatch(offset, offset, [ACCEPT])], RULES, 0)
    batches = write(share)
    assert [(one.first_offset, one.last_offset) for one in batches] == [(5, 5), (7, 8)]
    assert share.start_offset == 6

    moved = SharePartition(ShareState(0, 5, batches))  # the next leader reads the durable state
    assert (moved.start_offset, moved.end_offset, moved.fetch_offset) == (6, 9, 6)
    assert acquire(moved, "n", batch(5, 8)) == [(6, 6, 1)]


def test_acquire_modes_differ_in_the_last_batch() -> None:
    share = SharePartition(ShareState(0, 0))
    assert acquire(share, "m", batch(0, 9), batch(10, 19), batch(20, 29), limits=AcquireLimits(15, 500)) == [
        (0, 19, 1)
    ]
    share = SharePartition(ShareState(0, 0))
    limits = AcquireLimits(15, 500, is_strict=True)
    assert acquire(share, "m", batch(0, 9), batch(10, 19), limits=limits) == [(0, 14, 1)]
    assert share.fetch_offset == 15


def test_the_answer_has_ranges_of_about_the_batch_size() -> None:
    share = SharePartition(ShareState(0, 0))
    read = [batch(first, first + 3) for first in range(0, 20, 4)]
    assert acquire(share, "m", *read, limits=AcquireLimits(500, 6)) == [(0, 7, 1), (8, 15, 1), (16, 19, 1)]


def test_the_limit_of_records_in_flight_cuts_a_batch() -> None:
    rules = DeliveryRules(lock_ms=30_000, deliveries_max=5, in_flight_max=6)
    share = SharePartition(ShareState(0, 0))
    assert acquire(share, "m", batch(0, 9), rules=rules) == [(0, 5, 1)]
    assert not share.may_acquire(rules.in_flight_max)
    share.acknowledge("m", [AcknowledgedBatch(0, 1, [ACCEPT])], rules, 0)
    write(share)
    assert acquire(share, "m", batch(0, 9), rules=rules) == [(6, 7, 1)]


def test_offsets_without_records_become_final_without_a_write() -> None:
    share = SharePartition(ShareState(0, 0))
    acquired = acquire(
        share, "m", batch(0, 1, is_gap=True), batch(2, 3), batch(6, 6, is_gap=True), batch(7, 7)
    )
    assert acquired == [(2, 3, 1), (7, 7, 1)]
    assert share.start_offset == 2
    assert not share.needs_write
    share.acknowledge("m", [AcknowledgedBatch(2, 3, [ACCEPT])], RULES, 0)
    write(share)
    assert share.start_offset == 7


def test_a_read_that_is_older_than_a_release_archives_nothing() -> None:
    share = SharePartition(ShareState(0, 0))
    assert acquire(share, "m", batch(0, 3)) == [(0, 3, 1)]
    read_offset = share.fetch_offset
    assert read_offset == 4
    share.expire(30_000, RULES.deliveries_max)  # while the read was under way
    ranges = share.acquire("n", read_offset, [batch(4, 6)], WHOLE_BATCHES, RULES, 30_000)
    assert [tuple(one) for one in ranges] == [(4, 6, 1)]
    assert acquire(share, "n", batch(0, 3)) == [(0, 3, 2)]


def test_a_record_is_archived_at_the_limit_and_delivered_alone_before() -> None:
    share = SharePartition(ShareState(0, 0))
    sizes = []
    for delivery in range(12):
        acquired = acquire(share, "m", batch(0, 3), now_ms=delivery * 30_000)
        sizes.append([last - first + 1 for first, last, _ in acquired])
        share.expire((delivery + 1) * 30_000, RULES.deliveries_max)
    # whole, then half of the rest, and the last time each record alone
    assert sizes == [[4], [4], [4], [2], [1], [1], [1], [1], [1], [1], [], []]
    assert share.start_offset == share.end_offset == 4


def test_a_renewed_lock_expires_later() -> None:
    share = SharePartition(ShareState(0, 0))
    acquire(share, "m", batch(0, 3))
    assert share.acknowledge("m", [AcknowledgedBatch(2, 3, [RENEW])], RULES, 20_000) == 0
    assert not share.needs_write
    assert share.next_expiry_ms == 30_000
    assert share.expire(30_000, RULES.deliveries_max) == 2
    assert share.next_expiry_ms == 50_000
    assert acquire(share, "n", batch(0, 3), now_ms=30_000) == [(0, 1, 2)]


def test_nothing_changes_if_one_of_the_acknowledgements_is_refused() -> None:
    share = SharePartition(ShareState(0, 0))
    acquire(share, "m", batch(0, 3))
    acquire(share, "n", batch(4, 5))
    with pytest.raises(AcknowledgementError) as refused:
        share.acknowledge(
            "m", [AcknowledgedBatch(0, 3, [ACCEPT]), AcknowledgedBatch(4, 4, [ACCEPT])], RULES, 0
        )
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
    assert not share.needs_write
    with pytest.raises(AcknowledgementError) as refused:
        share.acknowledge("m", [AcknowledgedBatch(0, 6, [ACCEPT])], RULES, 0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_failed_write_leaves_the_lock_and_is_repeated_with_the_next_one() -> None:
    share = SharePartition(ShareState(0, 0))
    acquire(share, "m", batch(0, 3))
    number = share.acknowledge("m", [AcknowledgedBatch(0, 3, [ACCEPT])], RULES, 0)
    with pytest.raises(AcknowledgementError):  # a second acknowledgement of the same records
        share.acknowledge("m", [AcknowledgedBatch(0, 3, [ACCEPT])], RULES, 0)
    share.begin_write()
    assert share.end_write(is_durable=False) == number
    assert share.start_offset == 0
    share.expire(30_000, RULES.deliveries_max)
    assert write(share) == [StateBatch(0, 3, DeliveryState.AVAILABLE, 1)]


def test_the_log_start_takes_records_from_their_holders() -> None:
    share = SharePartition(ShareState(0, 0))
    acquire(share, "m", batch(0, 9))
    share.advance_start(4)
    share.acknowledge("m", [AcknowledgedBatch(0, 9, [ACCEPT])], RULES, 0)
    assert write(share) == [StateBatch(4, 9, DeliveryState.ACKNOWLEDGED, 1)]
    assert (share.start_offset, share.end_offset) == (10, 10)
    share.advance_start(50)
    assert (share.start_offset, share.fetch_offset) == (50, 50)


def test_a_state_that_contradicts_itself_is_refused() -> None:
    available = DeliveryState.AVAILABLE
    with pytest.raises(ShareStateCorruptError, match="does not follow offset 4"):
        SharePartition(ShareState(0, 0, [StateBatch(0, 3, available, 1), StateBatch(2, 5, available, 1)]))


@pytest.mark.parametrize(
    ("batches", "has_renewals"),
    [
        ([(5, 4, [1])], False),
        ([(0, 4, [1]), (4, 5, [1])], False),
        ([(0, 4, [])], False),
        ([(0, 4, [1, 1])], False),
        ([(0, 0, [4])], False),
        ([(0, 0, [5])], True),
        ([(-1, 0, [1])], False),
    ],
)
def test_malformed_acknowledgements_are_refused(
    batches: list[tuple[int, int, list[int]]], has_renewals: bool
) -> None:
    with pytest.raises(AcknowledgementError) as refused:
        check_form([AcknowledgedBatch(*one) for one in batches], has_renewals=has_renewals)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_range_has_one_type_or_one_for_each_offset() -> None:
    assert list(AcknowledgedBatch(3, 9, [ACCEPT]).ranges()) == [(3, 9, ACCEPT)]
    assert list(AcknowledgedBatch(3, 6, [1, 1, 2, 1]).ranges()) == [
        (3, 4, ACCEPT),
        (5, 5, RELEASE),
        (6, 6, ACCEPT),
    ]


def records(base_offset: int, count: int, producer_id: int | None = None) -> bytes:
    """A batch; with a producer id, a transactional one."""
    rows = [NewRecord(1_000, None, b"x")] * count
    if producer_id is None:
        return bytes(build_batch(rows, base_offset=base_offset))
    return bytes(
        build_batch(
            rows,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    content = build_end_marker(producer_id, 0, EndMarker(kind, 0), 1_000)
    BatchView(memoryview(content)).stamp(offset, 0)
    return bytes(content)


def test_markers_and_aborted_records_are_gaps() -> None:
    read = b"".join(
        [
            records(0, 2),
            records(2, 3, producer_id=7),
            records(5, 1, producer_id=8),
            marker(6, 7, ControlType.ABORT),
            records(7, 2, producer_id=7),
            marker(9, 8, ControlType.COMMIT),
        ]
    )
    gaps = [(2, 4), (6, 6), (9, 9)]
    parsed = list(fetched_batches([read], [(7, 2)]))
    assert [(one.first_offset, one.last_offset) for one in parsed if one.is_gap] == gaps
    assert b"".join(one.content for one in parsed) == read
    uncommitted = fetched_batches([read], None)
    assert [one.first_offset for one in uncommitted if one.is_gap] == [6, 9]


def test_a_read_that_ends_within_a_batch_is_refused() -> None:
    with pytest.raises(KafkaWireError, match="within the header"):
        list(fetched_batches([records(0, 2)[:40]], None))
