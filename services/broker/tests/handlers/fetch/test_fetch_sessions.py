"""Fetch sessions (KIP-227) from a client's view."""

from __future__ import annotations

import asyncio

import pytest
from ponor_broker.handlers.fetch.fetch_session import EPOCH_MAX, next_epoch
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import FetchResponse

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, base_offsets

A, B, C = ("a", 0), ("b", 0), ("c", 0)


async def begin(rig: FetchRig, *keys: tuple[str, int], offset: int = 0) -> FetchResponse:
    """A full fetch that asks for a session."""
    return await rig.fetch([(key, offset) for key in keys], epoch=0)


async def test_a_full_fetch_returns_a_session_and_every_partition() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        await rig.create("b")
        await rig.append("b")
        response = await begin(rig, A, B)
        assert response.session_id > 0
        assert [base_offsets(one) for one in rig.answers(response).values()] == [[], [0]]
        assert len(rig.sessions) == 1


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
async def test_incremental_answers_contain_only_changes(version: int) -> None:
    async with FetchRig(version=version) as rig:
        for topic in "abc":
            await rig.create(topic)
        session_id = (await begin(rig, A, B, C)).session_id
        nothing = await rig.fetch(session_id=session_id, epoch=1)
        assert (nothing.session_id, list(nothing.responses)) == (session_id, [])
        await rig.append("b", records=3)
        news = rig.answers(await rig.fetch(session_id=session_id, epoch=2))
        assert list(news) == [B]
        assert (base_offsets(news[B]), news[B].high_watermark) == ([0], 3)
        # The client says how far it is; then there is nothing more to tell.
        assert rig.answers(await rig.fetch([(B, 3)], session_id=session_id, epoch=3)) == {}


async def test_data_is_sent_again_until_the_fetch_offset_advances() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        await rig.append("a")
        session_id = (await begin(rig, A)).session_id
        for epoch in (1, 2):
            assert base_offsets(rig.answers(await rig.fetch(session_id=session_id, epoch=epoch))[A]) == [0]


async def test_partitions_are_added_and_removed() -> None:
    async with FetchRig() as rig:
        for topic in "abc":
            await rig.create(topic)
        session_id = (await begin(rig, A)).session_id
        added = await rig.fetch([(B, 0), (C, 0)], session_id=session_id, epoch=1)
        assert list(rig.answers(added)) == [B, C], "a new partition is reported once, with or without data"
        for topic in "abc":
            await rig.append(topic)
        left = await rig.fetch(session_id=session_id, epoch=2, forgotten=[A, B, ("never", 3)])
        assert list(rig.answers(left)) == [C]
        ended = await rig.fetch(session_id=session_id, epoch=3, forgotten=[C])
        assert (ended.session_id, ended.error_code) == (0, 0)
        assert len(rig.sessions) == 0


async def test_epochs_count_up_and_wrap_to_one() -> None:
    assert next_epoch(1) == 2
    assert next_epoch(EPOCH_MAX) == 1
    async with FetchRig() as rig:
        await rig.create("a")
        session_id = (await begin(rig, A)).session_id
        session = rig.sessions.find(session_id)
        assert session is not None
        session.epoch = EPOCH_MAX
        assert (await rig.fetch(session_id=session_id, epoch=EPOCH_MAX)).error_code == 0
        assert (await rig.fetch(session_id=session_id, epoch=0x7FFF_FFFE)).error_code == 71
        assert (await rig.fetch(session_id=session_id, epoch=1)).error_code == 0


async def test_invalid_session_requests_are_refused_without_effect() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        session_id = (await begin(rig, A)).session_id
        wrong_epoch = await rig.fetch([(B, 0)], session_id=session_id, epoch=5)
        assert wrong_epoch.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        unknown = await rig.fetch(session_id=session_id + 1, epoch=1)
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        by_name = await rig.fetch(session_id=session_id, epoch=1, version=12)
        assert by_name.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert (by_name.session_id, list(by_name.responses)) == (0, [])
        right = await rig.fetch(session_id=session_id, epoch=1)
        assert (right.error_code, list(right.responses)) == (0, [])


async def test_a_full_fetch_ends_the_named_session() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        first = (await begin(rig, A)).session_id
        second = await rig.fetch([(A, 0)], session_id=first, epoch=0)
        assert second.session_id not in {0, first}
        assert (await rig.fetch(session_id=first, epoch=1)).error_code == 70
        closed = await rig.fetch([(A, 0)], session_id=second.session_id, epoch=-1)
        assert (closed.session_id, list(rig.answers(closed))) == (0, [A])
        assert len(rig.sessions) == 0


async def test_a_parked_fetch_wakes_only_for_its_partitions() -> None:
    async with FetchRig() as rig:
        for topic in "abc":
            await rig.create(topic)
        session_id = (await begin(rig, A, B)).session_id
        waiting = rig.start(session_id=session_id, epoch=1, max_wait_ms=60_000)
        await rig.append("c")
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        await rig.append("b")
        assert list(rig.answers(await waiting)) == [B]


async def test_min_bytes_are_counted_over_all_partitions() -> None:
    async with FetchRig() as rig:
        for topic in "ab":
            await rig.create(topic)
        session_id = (await begin(rig, A, B)).session_id
        waiting = rig.start(session_id=session_id, epoch=1, max_wait_ms=60_000, min_bytes=200)
        await rig.append("a")
        await asyncio.sleep(0)
        await rig.append("b")
        await asyncio.sleep(0)
        assert not waiting.done()
        await rig.append("a")
        assert {key: base_offsets(one) for key, one in rig.answers(await waiting).items()} == {
            A: [0, 1],
            B: [0],
        }


async def test_a_request_that_continues_a_session_ends_the_former_wait() -> None:
    """Sessions belong to the broker: a reconnected client continues while its old connection still waits."""
    async with FetchRig() as rig:
        await rig.create("a")
        session_id = (await begin(rig, A)).session_id
        waiting = rig.start(session_id=session_id, epoch=1, max_wait_ms=60_000)
        await asyncio.sleep(0)
        rig_answer = await rig.fetch(session_id=session_id, epoch=2)
        assert rig_answer.error_code == 0
        assert (await waiting).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_session_survives_a_disconnect() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        session_id = (await begin(rig, A)).session_id
        waiting = rig.start(session_id=session_id, epoch=1, max_wait_ms=60_000)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await rig.append("a")
        assert list(rig.answers(await rig.fetch(session_id=session_id, epoch=2))) == [A]


async def test_errors_are_sent_immediately_and_the_recovery_once() -> None:
    async with FetchRig() as rig:
        await rig.create("a", epoch=3)
        session_id = (await begin(rig, A)).session_id
        await rig.move("a", 0, OTHER_NODE, 4)
        for epoch in (1, 2):
            response = await rig.fetch(session_id=session_id, epoch=epoch, max_wait_ms=60_000)
            refused = rig.answers(response)[A]
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert refused.current_leader is not None
            assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (OTHER_NODE, 4)
            assert [(one.node_id, one.host) for one in response.node_endpoints] == [(OTHER_NODE, "host8")]
        await rig.move("a", 0, NODE, 5)
        back = rig.answers(await rig.fetch(session_id=session_id, epoch=3))
        assert (back[A].error_code, back[A].high_watermark) == (0, 0)
        assert rig.answers(await rig.fetch(session_id=session_id, epoch=4)) == {}


async def test_a_move_wakes_a_parked_fetch() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        session_id = (await begin(rig, A)).session_id
        waiting = rig.start(session_id=session_id, epoch=1, max_wait_ms=60_000)
        await rig.move("a", 0, OTHER_NODE, 1)
        assert rig.answers(await waiting)[A].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_recreated_topic_is_another_topic() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        await rig.append("a")
        session_id = (await begin(rig, A, offset=1)).session_id
        old = dict(rig.topic_ids)
        await rig.delete("a")
        await rig.create("a")
        await rig.append("a")
        response = await rig.fetch(session_id=session_id, epoch=1)
        (topic,) = response.responses
        assert topic.topic_id == old["a"]
        assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        new = await rig.fetch([(A, 0)], session_id=session_id, epoch=2)
        assert base_offsets(rig.answers(new)[A]) == [0]


async def test_no_partition_starves() -> None:
    """Answers of one batch each rotate over all partitions with data."""
    async with FetchRig() as rig:
        for topic in "abc":
            await rig.create(topic)
            for _ in range(3):
                await rig.append(topic)
        session_id = (await rig.fetch([(A, 0), (B, 0), (C, 0)], epoch=0, max_bytes=1)).session_id
        offsets = {A: 1, B: 0, C: 0}
        order = []
        changed = [(A, 1)]
        for epoch in range(1, 9):
            response = await rig.fetch(changed, session_id=session_id, epoch=epoch, max_bytes=1)
            ((key, one),) = [(k, v) for k, v in rig.answers(response).items() if v.records]
            assert base_offsets(one) == [offsets[key]]
            offsets[key] += 1
            changed = [(key, offsets[key])]
            order.append(key[0])
        assert order == ["b", "c", "a", "b", "c", "a", "b", "c"]


async def test_a_thousand_idle_partitions_are_not_checked() -> None:
    async with FetchRig(session_bytes_max=1 << 22) as rig:
        await rig.create("many", 1000)
        keys = [("many", index) for index in range(1000)]
        session_id = (await begin(rig, *keys)).session_id
        session = rig.sessions.find(session_id)
        assert session is not None
        assert session.due == []
        await rig.append("many", 77)
        assert [one.index for one in session.due] == [77]
        assert list(rig.answers(await rig.fetch(session_id=session_id, epoch=1))) == [("many", 77)]
        assert list(rig.answers(await rig.fetch([(("many", 77), 1)], session_id=session_id, epoch=2))) == []
        assert session.due == []


async def test_idle_sessions_cost_a_busy_partition_one_call() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        for _ in range(3):
            await begin(rig, A)
        partition = rig.partition("a")
        assert len(partition._watchers) == 3
        await rig.append("a")
        assert len(partition._watchers) == 0


async def test_a_refused_session_watches_no_partition() -> None:
    async with FetchRig(slots_max=0) as rig:
        await rig.create("a")
        assert (await begin(rig, A)).session_id == 0
        waiting = rig.start([(A, 0)], epoch=0, max_wait_ms=60_000)
        await asyncio.sleep(0)
        assert len(rig.partition("a")._watchers) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(rig.partition("a")._watchers) == 0


class TestSlots:
    async def test_an_old_session_is_evicted_only_by_a_larger_one(self) -> None:
        async with FetchRig(slots_max=2) as rig:
            await rig.create("a", 4)
            small = (await begin(rig, ("a", 0))).session_id
            large = (await begin(rig, ("a", 0), ("a", 1), ("a", 2))).session_id
            assert (await begin(rig, ("a", 0), ("a", 1))).session_id == 0, "both are young"
            for session_id in (small, large):
                rig.clock.now_ms += 61_000
                assert (await rig.fetch(session_id=session_id, epoch=1)).error_code == 0
            rig.clock.now_ms += 1_000
            assert (await begin(rig, ("a", 3))).session_id == 0, "no larger than the smallest"
            middle = (await begin(rig, ("a", 0), ("a", 1))).session_id
            assert middle > 0
            assert (await rig.fetch(session_id=small, epoch=2)).error_code == 70
            assert (await rig.fetch(session_id=large, epoch=2)).error_code == 0
            assert (await begin(rig, ("a", 0), ("a", 1), ("a", 2))).session_id == 0

    async def test_an_idle_session_is_evicted_by_any_new_one(self) -> None:
        async with FetchRig(slots_max=1) as rig:
            await rig.create("a", 2)
            first = (await begin(rig, ("a", 0), ("a", 1))).session_id
            rig.clock.now_ms += 120_000
            assert (await begin(rig, A)).session_id == 0
            rig.clock.now_ms += 1
            assert (await begin(rig, A)).session_id > 0
            assert (await rig.fetch(session_id=first, epoch=1)).error_code == 70
            assert dict(rig.telemetry.counters("ponor_fetch_sessions_evicted_total"))[()] == 1

    async def test_a_grown_session_is_charged_its_new_size(self) -> None:
        async with FetchRig(slots_max=2) as rig:
            await rig.create("a", 3)
            first = (await begin(rig, ("a", 0))).session_id
            second = (await begin(rig, ("a", 0), ("a", 1))).session_id
            rig.clock.now_ms += 121_000
            grown = [(("a", 1), 0), (("a", 2), 0)]
            await rig.fetch(grown, session_id=first, epoch=1)
            await rig.fetch(session_id=second, epoch=1)
            assert (await begin(rig, ("a", 0), ("a", 1), ("a", 2))).session_id > 0
            assert (await rig.fetch(session_id=first, epoch=2)).error_code == 0
            assert (await rig.fetch(session_id=second, epoch=2)).error_code == 70

    async def test_memory_of_one_and_of_all_sessions_is_bounded(self) -> None:
        async with FetchRig(slots_max=100, session_bytes_max=4_000, sessions_bytes_max=10_000) as rig:
            await rig.create("a", 10)
            keys = [("a", index) for index in range(10)]
            assert (await begin(rig, *keys)).session_id == 0, "too large for one"
            session_id = (await begin(rig, *keys[:4])).session_id
            assert session_id > 0
            growing = await rig.fetch([(key, 0) for key in keys], session_id=session_id, epoch=1)
            assert growing.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert len(rig.sessions) == 0
            given = [(await begin(rig, *keys[:4])).session_id for _ in range(5)]
            assert [bool(session_id) for session_id in given] == [True, True, False, False, False]
            assert rig.sessions.held_bytes <= 10_000
            assert dict(rig.telemetry.counters("ponor_fetch_sessions_refused_total"))[()] == 4
