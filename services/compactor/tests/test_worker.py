"""Tests of every outcome of a task at its worker, against the controller's own ledger."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.worker import Outcome
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectState
from ponor_metadata.nouns.streams import STREAM_OBJECTS
from ponor_runtime.object_store import ObjectStoreUnavailableError

from libs.s3stream.tests.store_rig import Failure
from services.compactor.tests.workshop import SETTINGS, Hand, Workshop, paused, pieces_of


@pytest.fixture
async def workshop() -> Workshop:
    workshop = Workshop()
    for _ in range(6):
        await workshop.upload()
    return workshop


def _tasks(hand: Hand, outcome: Outcome) -> int:
    return hand.telemetry.counter("ponor_compactor_tasks_total", outcome=outcome.value).value


async def test_small_uploads_become_few_objects_with_the_same_bytes(
    workshop: Workshop,
) -> None:
    before = await workshop.everything()
    assert pieces_of(workshop) == [6, 6, 6]
    hand = workshop.hand()
    assert await hand.worker.once() is Outcome.DONE
    assert pieces_of(workshop) == [1, 1, 1]
    assert await workshop.everything() == before
    kinds = [workshop.ledger.image[STREAM_OBJECTS].get(each) for each in workshop.committed()]
    assert sum(row is not None for row in kinds) == 1, "the large stream gets its own object"
    assert not list(workshop.ledger.image[COMPACTIONS])
    validate(workshop.ledger.image)
    made = [kind for kind in hand.session.kinds if kind != "renew_compaction"]
    assert made == ["lease_compaction", "prepare_objects", "commit_compaction"]


async def test_idle_workers_make_no_store_calls_and_no_log_records(workshop: Workshop) -> None:
    hand = workshop.hand()
    assert await hand.worker.once() is Outcome.DONE
    calls, index = len(workshop.store.calls), workshop.ledger.view.index
    for _ in range(5):
        assert await hand.worker.once() is Outcome.NOTHING
    assert (len(workshop.store.calls), workshop.ledger.view.index) == (calls, index)


async def test_new_uploads_are_joined_with_earlier_outputs(workshop: Workshop) -> None:
    hand = workshop.hand()
    for _ in range(4):
        await workshop.upload()
        before = await workshop.everything()
        while await hand.worker.once() is not Outcome.NOTHING:
            assert await workshop.everything() == before
    validate(workshop.ledger.image)


async def test_trimmed_and_deleted_data_is_dropped(workshop: Workshop) -> None:
    first, second, third = workshop.streams
    workshop.trim(first, 12)
    workshop.delete(second)
    expected = await workshop.fetch(first, 12), await workshop.fetch(third, 0)
    assert await workshop.hand().worker.once() is Outcome.DONE
    assert (await workshop.fetch(first, 12), await workshop.fetch(third, 0)) == expected
    held = {
        piece.stream_id for row in workshop.ledger.image[STREAM_SET_OBJECTS] for piece in row.ranges.decoded
    }
    assert second not in held


async def test_trim_and_deletion_during_the_copy(
    workshop: Workshop,
) -> None:
    first, second, third = workshop.streams
    expected = await workshop.fetch(first, 17), await workshop.fetch(third, 0)

    def meanwhile() -> None:
        workshop.trim(first, 17)
        workshop.delete(second)

    hand = workshop.hand()
    hand.session.before_commit = meanwhile
    assert await hand.worker.once() is Outcome.DONE
    assert (await workshop.fetch(first, 17), await workshop.fetch(third, 0)) == expected
    assert pieces_of(workshop)[2] == 1
    validate(workshop.ledger.image)


async def test_deletion_of_all_streams_during_the_copy_ends_the_task(workshop: Workshop) -> None:
    def meanwhile() -> None:
        workshop.delete(*workshop.streams)
        workshop.ledger.reclaim()

    hand = workshop.hand()
    hand.session.before_commit = meanwhile
    assert await hand.worker.once() is Outcome.SOURCE_GONE
    assert not list(workshop.ledger.image[COMPACTIONS])
    assert not workshop.committed()
    assert await hand.worker.once() is Outcome.NOTHING


async def test_commit_between_deletion_and_reclaim_destroys_sources_and_outputs(
    workshop: Workshop,
) -> None:
    hand = workshop.hand()
    hand.session.before_commit = lambda: workshop.delete(*workshop.streams)
    assert await hand.worker.once() is Outcome.DONE
    assert not list(workshop.ledger.image[COMPACTIONS])
    assert not workshop.committed()
    workshop.ledger.reclaim()
    validate(workshop.ledger.image)
    assert await hand.worker.once() is Outcome.NOTHING


async def test_pauses_grow_while_there_is_no_task(workshop: Workshop) -> None:
    hand = workshop.hand()
    while await hand.worker.once() is not Outcome.NOTHING:
        pass
    hand.clock.slept.clear()
    working = asyncio.create_task(hand.worker.run())
    while len(hand.clock.slept) < 10:
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    pauses = hand.clock.slept
    assert pauses == sorted(pauses)
    assert pauses[0] <= SETTINGS.compactor_poll_interval_ms_min / 1000
    assert pauses[0] * 8 < pauses[-1] <= SETTINGS.compactor_poll_interval_ms_max / 1000


async def test_uninterrupted_work_raises_the_rate_and_idle_time_lowers_it(
    workshop: Workshop,
) -> None:
    least = 100
    hand = workshop.hand(2_000, replace(SETTINGS, compactor_bytes_per_s_min=least))
    assert await hand.worker.once() is Outcome.DONE
    faster = hand.pace.bytes_per_s
    assert faster > 1.2 * least
    assert await hand.worker.once() is Outcome.NOTHING
    await hand.clock.sleep(1.0)
    assert least < hand.pace.bytes_per_s < faster
    await hand.clock.sleep(600.0)
    assert hand.pace.bytes_per_s == pytest.approx(least)


async def test_failed_task_counts_as_work_until_it_fails(workshop: Workshop) -> None:
    least = 100
    hand = workshop.hand(2_000, replace(SETTINGS, compactor_bytes_per_s_min=least))
    workshop.store.fail("put", *[Failure(ObjectStoreUnavailableError("away"))] * 5)
    assert await hand.worker.once() is Outcome.STORE_FAILED
    after = hand.pace.bytes_per_s
    await hand.clock.sleep(1.0)
    assert hand.pace.bytes_per_s < after


async def test_duplicate_commit_takes_effect_once(workshop: Workshop) -> None:
    before = await workshop.everything()
    hand = workshop.hand()
    hand.session.commits_twice = True
    assert await hand.worker.once() is Outcome.DONE
    assert await workshop.everything() == before


async def test_worker_paused_beyond_its_lease_drops_the_task(workshop: Workshop) -> None:
    before = await workshop.everything()
    slow, other = workshop.hand(2_000), workshop.hand(2_001)
    with paused(workshop.store):
        working = asyncio.create_task(slow.worker.once())
        while "lease_compaction" not in slow.session.kinds:
            await asyncio.sleep(0)
        workshop.ledger.now_ms += SETTINGS.compactor_lease_ttl_ms + 1
        taken = workshop.ledger.do(
            other.session.caller, lease_compaction=wire.LeaseCompaction(ttl_ms=1, source_bytes_max=1 << 40)
        ).compaction_granted
        assert taken.token == 2
        assert await working is Outcome.FENCED
    workshop.ledger.now_ms += 10
    assert await other.worker.once() is Outcome.DONE
    assert await workshop.everything() == before
    validate(workshop.ledger.image)


async def test_missing_source_ends_the_task(workshop: Workshop) -> None:
    lost = workshop.committed()[2]
    del workshop.store.objects[workshop.key(lost)]
    hand = workshop.hand()
    assert await hand.worker.once() is Outcome.SOURCE_GONE
    assert hand.session.kinds[-1] == "end_compaction"
    assert not list(workshop.ledger.image[COMPACTIONS])
    assert lost in workshop.committed(), "the metadata is unchanged"


async def test_damaged_source_is_detected_and_not_replaced(workshop: Workshop) -> None:
    sources = workshop.committed()
    key = workshop.key(sources[0])
    damaged = bytearray(workshop.store.objects[key])
    damaged[20] ^= 1
    workshop.store.objects[key] = bytes(damaged)
    hand = workshop.hand()
    assert await hand.worker.once() is Outcome.DAMAGED
    assert workshop.committed() == sources
    assert _tasks(hand, Outcome.DAMAGED) == 1


async def test_task_is_done_after_its_lease_expires_when_the_store_failed(
    workshop: Workshop,
) -> None:
    before = await workshop.everything()
    workshop.store.fail("put", *[Failure(ObjectStoreUnavailableError("away"))] * 5)
    hand = workshop.hand()
    assert await hand.worker.once() is Outcome.STORE_FAILED
    (task,) = workshop.ledger.image[COMPACTIONS]
    workshop.store.failures.clear()
    assert await hand.worker.once() is Outcome.NOTHING
    workshop.ledger.now_ms = task.leased_until_ms + 1
    assert await hand.worker.once() is Outcome.DONE
    assert await workshop.everything() == before
    garbage = [row for row in workshop.ledger.image[OBJECTS] if row.state is ObjectState.PREPARED]
    assert garbage, "ids of the first attempt expire"


async def test_task_above_the_budget_is_ended(
    workshop: Workshop,
) -> None:
    settings = CompactorSettings(compaction_budget_bytes=50)
    hand = workshop.hand(2_000, settings)
    assert await hand.worker.once() is Outcome.UNFIT
    assert not list(workshop.ledger.image[COMPACTIONS])
    assert hand.session.kinds[-1] == "end_compaction"
    assert "prepare_objects" not in hand.session.kinds, "the check precedes every write"


async def test_broker_gets_no_tasks(workshop: Workshop) -> None:
    hand = workshop.hand()
    hand.session.caller = workshop.broker
    assert await hand.worker.once() is Outcome.REFUSED
