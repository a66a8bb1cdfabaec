"""ShareFetch and ShareAcknowledge, over real partitions and a persister in memory."""

from __future__ import annotations

import asyncio

import pytest
from ponor_broker.coordination.share_persister import DeliveryState, SharePartitionKey, ShareState
from ponor_broker.handlers.share.share_fetch import ROWS_PER_STEP
from ponor_broker.handlers.share.share_reading import PARTITIONS_PER_TURN
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.share_partitions.acknowledgement import PART_OFFSETS_MAX
from ponor_broker.share_partitions.share_partition import WRITTEN_RUNS_MAX
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from ponor_kafka.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from s3stream.records import StreamRecord

from services.broker.tests.fetch_rig import OTHER_NODE, base_offsets
from services.broker.tests.handlers.fetch.test_read_committed import Transactions
from services.broker.tests.share_partitions.share_rig import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    ShareRig,
    ranges,
    turns,
)

ACQUIRED = DeliveryState.ACQUIRED


async def test_the_member_acquires_records_and_acknowledges_them_with_the_next_fetch() -> None:
    async with ShareRig() as rig:
        await rig.append(3, 2)
        member = await rig.member()
        answer = await member.fetch()
        assert ranges(answer) == [(0, 4, 1)]
        assert base_offsets(answer.responses[0].partitions[0]) == [0, 3]  # type: ignore[arg-type]
        assert answer.acquisition_lock_timeout_ms == 30_000
        await rig.append(1)
        answer = await member.fetch(acks=[(0, 4, ACCEPT)])
        row = answer.responses[0].partitions[0]
        assert (ranges(answer), row.acknowledge_error_code) == ([(5, 5, 1)], 0)
        assert rig.persister.states[rig.key()].offsets[4] == (1, 2)


async def test_exactly_the_record_that_was_not_acknowledged_comes_again_after_a_failover() -> None:
    async with ShareRig() as rig:
        await rig.initialize("a", state_epoch=2, start_offset=5)
        await rig.append(5, 4)
        member = await rig.member()
        assert await member.acquired() == [(5, 8, 1)]
        assert await member.code([(5, 5, ACCEPT), (7, 8, ACCEPT)]) == 0
        await rig.fetching.move("a", 0, OTHER_NODE, 1)
        await rig.fetching.move("a", 0, rig.fetching.partitions._node_id, 2)
        member = await rig.member("n")
        assert await member.acquired() == [(6, 6, 1)]
        assert await member.acquired() == []


async def test_an_expired_lock_wakes_another_member() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one, other = await rig.member("m"), await rig.member("n")
        assert await one.acquired() == [(0, 1, 1)]
        waiting = asyncio.ensure_future(other.acquired(max_wait_ms=60_000))
        await rig.pass_time(29_000)
        assert not waiting.done()
        await rig.pass_time(2_000)
        assert await waiting == [(0, 1, 2)]
        assert await one.code([(0, 1, ACCEPT)]) == ErrorCode.INVALID_RECORD_STATE


async def test_released_records_and_new_ones_wake_a_member() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one, other = await rig.member("m"), await rig.member("n")
        assert await one.acquired() == [(0, 1, 1)]
        waiting = asyncio.ensure_future(other.acquired(max_wait_ms=60_000))
        await turns()
        assert await one.code([(0, 1, RELEASE)]) == 0
        assert await waiting == [(0, 1, 2)]
        waiting = asyncio.ensure_future(one.acquired(max_wait_ms=60_000))
        await turns()
        await rig.append(1)
        assert await waiting == [(2, 2, 1)]


async def test_locks_do_not_expire_while_the_broker_may_not_answer() -> None:
    async with ShareRig() as rig:
        await rig.append(1)
        one = await rig.member()
        assert await one.acquired() == [(0, 0, 1)]
        rig.fetching.permission.withdraw()
        await rig.pass_time(40_000)
        refused = (await one.fetch()).responses[0].partitions[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        rig.fetching.permission.restore()
        assert await one.code([(0, 0, ACCEPT)]) == 0


async def test_a_disconnected_member_releases_its_records() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one, other = await rig.member("m"), await rig.member("n")
        assert await one.acquired() == [(0, 1, 1)]
        one.disconnect()
        await turns()
        assert await other.acquired() == [(0, 1, 2)]
        assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_a_connection_keeps_nothing_of_sessions_that_ended_or_were_replaced() -> None:
    async with ShareRig() as rig:
        one = await rig.member("m")
        for _ in range(5):
            one.epoch = 0
            await one.fetch()
        assert one.connection.on_closed is not None
        assert len(one.connection.on_closed) == 1
        one.epoch = -1
        await one.fetch()
        assert not one.connection.on_closed


async def test_a_member_that_returns_at_once_keeps_its_records() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one, _ = await rig.member("m"), await rig.member("n")
        assert await one.acquired() == [(0, 1, 1)]
        one.disconnect()
        one.epoch = 0
        await one.fetch(["a"])
        await turns()
        assert await one.code([(0, 1, ACCEPT)]) == 0


async def test_one_turn_releases_the_records_of_one_partition() -> None:
    async with ShareRig() as rig:
        topics = ("a", "b", "c")
        for topic in topics[1:]:
            await rig.fetching.create(topic)
            await rig.initialize(topic)
        for topic in topics:
            await rig.append(1, topic=topic)
        one, _ = await rig.member("m", *topics), await rig.member("n")
        while len(held := [topic for topic in topics if rig.holds("m", topic)]) < len(topics):
            await one.fetch()
        one.disconnect()
        for _ in range(20):
            before = len(held)
            await asyncio.sleep(0)
            held = [topic for topic in topics if rig.holds("m", topic)]
            assert len(held) >= before - 1
        assert not held


async def test_the_last_session_of_a_group_drops_its_memory() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one = await rig.member()
        assert await one.acquired() == [(0, 1, 1)]
        one.epoch = -1
        assert await one.code([(0, 0, ACCEPT)]) == 0
        await turns()
        assert len(rig.shares) == 0
        await rig.initialize("a", state_epoch=2, start_offset=0)  # an administrator resets the group
        assert await (await rig.member()).acquired() == [(0, 1, 1)]


async def test_a_fenced_leader_drops_its_memory_and_reads_again() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one = await rig.member()
        assert await one.acquired() == [(0, 1, 1)]
        await rig.initialize("a", state_epoch=2, start_offset=1)
        assert await one.code([(0, 0, ACCEPT)]) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await one.fetch()
        await turns()
        assert await one.acquired() == [(1, 1, 1)]


async def test_a_recreated_group_begins_anew_although_a_former_member_still_has_a_session() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        former = await rig.member("former")
        assert await former.acquired() == [(0, 1, 1)]
        assert await former.code([(0, 1, ACCEPT)]) == 0
        await rig.persister.delete(rig.key())
        await rig.initialize("a", state_epoch=1)
        await rig.pass_time(1_000)
        assert await (await rig.member("n")).acquired(max_wait_ms=60_000) == [(0, 1, 1)]


async def test_a_new_member_sees_a_reset_although_a_former_member_still_has_a_session() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        former = await rig.member("former")
        assert await former.acquired() == [(0, 1, 1)]
        assert await former.code([(0, 1, ACCEPT)]) == 0
        await rig.initialize("a", state_epoch=2, start_offset=0)
        await rig.pass_time(1_000)
        assert await (await rig.member("n")).acquired(max_wait_ms=60_000) == [(0, 1, 1)]


async def test_a_new_member_gets_records_although_the_state_cannot_be_compared() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one, other = await rig.member("m"), Member(rig, "n")
        await rig.pass_time(1_000)
        rig.persister.opened.clear()
        await other.fetch(["a"], max_records=0)
        await turns()
        assert await one.acquired() == []  # it waits for the comparison
        await rig.pass_time(2_500)
        await (Member(rig, "o")).fetch(["a"], max_records=0)  # members do not wait again at once
        assert await one.acquired() == [(0, 1, 1)]
        rig.persister.opened.set()


async def test_a_state_that_does_not_exist_is_read_rarely_until_a_member_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ShareRig() as rig:
        await rig.append(1)
        await rig.persister.delete(rig.key())
        reads = []
        read = rig.persister.read

        async def counted(key: SharePartitionKey, leader_epoch: int) -> ShareState | ErrorCode:
            reads.append(key)
            return await read(key, leader_epoch)

        clock = rig.fetching.clock

        async def sleep(seconds: float) -> None:
            ends_ms = clock.now_ms + seconds * 1_000
            while clock.now_ms < ends_ms:
                await asyncio.sleep(0)

        monkeypatch.setattr(clock, "sleep", sleep)
        monkeypatch.setattr(rig.persister, "read", counted)
        stray = await rig.member("stray")
        await rig.pass_time(60_000)
        assert await stray.acquired() == []
        assert 2 <= len(reads) <= 10
        await rig.initialize("a")
        assert await (await rig.member("n")).acquired() == [(0, 0, 1)]


async def test_a_failed_write_is_answered_with_its_error_and_the_records_stay_locked() -> None:
    async with ShareRig() as rig:
        await rig.append(2)
        one = await rig.member()
        assert await one.acquired() == [(0, 1, 1)]
        rig.persister.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await one.code([(0, 1, ACCEPT)]) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        rig.persister.refusal = None
        assert await one.code([(0, 1, ACCEPT)]) == 0


async def test_acknowledgements_during_a_write_are_joined_in_the_next_one() -> None:
    async with ShareRig() as rig:
        await rig.append(4)
        one = await rig.member()
        assert await one.acquired() == [(0, 3, 1)]
        rig.persister.opened.clear()
        waiting = []
        for offset in range(4):
            waiting.append(asyncio.ensure_future(one.code([(offset, offset, ACCEPT)])))
            await turns()
        before = len(rig.persister.written)
        rig.persister.opened.set()
        assert await asyncio.gather(*waiting) == [0, 0, 0, 0]
        assert len(rig.persister.written) - before == 2


async def test_the_most_acknowledgements_are_applied_and_written_in_parts() -> None:
    count = 10_000
    async with ShareRig(group_share_partition_max_record_locks=count) as rig:
        await rig.append(count)
        one = await rig.member()
        assert await one.acquired(max_records=count, batch_size=count) == [(0, count - 1, 1)]
        types = [RELEASE[0], *ACCEPT] * (count // 2)
        largest: list[int] = []
        waiting = asyncio.ensure_future(one.code([(0, count - 1, types)]))
        while not waiting.done():
            before = _changed(rig)
            await turns(1)
            largest.append(_changed(rig) - before)
        assert waiting.result() == 0
        assert 0 < max(largest) <= PART_OFFSETS_MAX
        batches = [written for _, written in rig.persister.written]
        assert max(map(len, batches)) <= WRITTEN_RUNS_MAX
        assert sum(map(len, batches)) == count
        assert await one.acquired(max_records=count, batch_size=count) == [
            (offset, offset, 2) for offset in range(0, count, 2)
        ]


def _changed(rig: ShareRig) -> int:
    """Number of records whose acknowledgement was applied."""
    share = rig.shares.find("g", rig.fetching.topic_ids["a"], 0)
    assert share is not None
    assert share.state is not None
    unchanged = sum(len(run) for run in share.state.runs if run.state is ACQUIRED and run.target is None)
    return share.state.end_offset - unchanged


async def test_a_part_of_the_acknowledgements_may_be_refused_when_a_lock_expires_meanwhile() -> None:
    async with ShareRig() as rig:
        await rig.append(1_500)
        one = await rig.member()
        assert await one.acquired(max_records=1_500, batch_size=1_500) == [(0, 1_499, 1)]
        waiting = asyncio.ensure_future(one.code([(0, 1_499, ACCEPT)]))
        while not _changed(rig):
            await turns(1)
        share = rig.shares.find("g", rig.fetching.topic_ids["a"], 0)
        assert share is not None
        assert share.state is not None
        share.state.expire(1 << 40, 5)
        assert await waiting == ErrorCode.INVALID_RECORD_STATE
        assert await one.acquired(max_records=1_500, batch_size=1_500) == [(1_000, 1_499, 2)]


async def test_acknowledgements_for_many_partitions_take_several_turns() -> None:
    async with ShareRig() as rig:
        member = await rig.member()
        rows = [
            AcknowledgePartition(index, [AcknowledgementBatch(0, 99, [1] * 100)]) for index in range(1, 900)
        ]
        request = ShareAcknowledgeRequest(
            "g", member.name, 1, topics=[AcknowledgeTopic(rig.fetching.topic_ids["a"], rows)]
        )
        context = RequestContext(2, "c", member.connection)
        waiting = asyncio.ensure_future(rig.acknowledger.handle(request, context))
        took = 0
        while not waiting.done():
            await turns(1)
            took += 1
        assert took > 80
        codes = {row.error_code for topic in waiting.result().responses for row in topic.partitions}
        assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_session_of_many_unknown_partitions_is_answered_in_turns_and_bounded() -> None:
    async with ShareRig() as rig:
        member = Member(rig, "m")

        async def turns_of(first: int, end: int) -> tuple[int, int]:
            """Add partitions to the session; return the error and the number of turns."""
            rows = [FetchPartition(index) for index in range(first, end)]
            request = ShareFetchRequest("g", member.name, member.epoch, max_records=1, max_bytes=1)
            request.topics = [FetchTopic(b"x" * 16, rows)]
            member.epoch += 1
            context = RequestContext(2, "c", member.connection)
            waiting = asyncio.ensure_future(rig.fetcher.handle(request, context))
            took = 0
            while not waiting.done():
                await turns(1)
                took += 1
            return waiting.result().error_code, took

        code, took = await turns_of(0, 10_000)
        assert code == 0
        assert took > 10_000 / PARTITIONS_PER_TURN + 10_000 / ROWS_PER_STEP
        assert await turns_of(10_000, 10_001) == (ErrorCode.INVALID_REQUEST, 1)
        assert len(rig.delivery.sessions) == 0
        member.epoch = 0
        assert await turns_of(0, 10_001) == (ErrorCode.INVALID_REQUEST, 1)


async def test_more_acknowledgements_than_a_partition_has_records_are_refused() -> None:
    async with ShareRig() as rig:
        member = await rig.member()
        answer = await member.acknowledge([(0, 20_000, [1] * 20_001)])
        assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_a_move_refuses_waiting_acknowledgements_and_names_the_new_leader() -> None:
    async with ShareRig() as rig:
        await rig.append(1)
        one = await rig.member()
        assert await one.acquired() == [(0, 0, 1)]
        rig.persister.opened.clear()
        acknowledging = asyncio.ensure_future(one.code([(0, 0, ACCEPT)]))
        fetching = asyncio.ensure_future(one.fetch(max_wait_ms=60_000))
        await turns()
        await rig.fetching.move("a", 0, OTHER_NODE, 1)
        assert await acknowledging == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = await fetching
        row = answer.responses[0].partitions[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(rig.shares) == 0
        rig.persister.opened.set()


async def test_session_errors() -> None:
    async with ShareRig(group_share_sessions_max=1) as rig:
        one = Member(rig, "m", epoch=3)
        assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        one.epoch = 0
        assert (await one.acknowledge([])).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        one = await rig.member()
        assert (await Member(rig, "n").fetch(["a"])).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        one.epoch = 7
        assert (await one.fetch()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        one.epoch = 0
        assert (await one.acknowledge([])).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        one.epoch = 0
        assert (await one.fetch(acks=[(0, 0, ACCEPT)])).error_code == ErrorCode.INVALID_REQUEST
        assert (await Member(rig, "").fetch()).error_code == ErrorCode.INVALID_REQUEST


async def test_renewal_extends_the_lock_and_fetches_nothing() -> None:
    async with ShareRig() as rig:
        await rig.append(1)
        one = await rig.member()
        assert await one.acquired() == [(0, 0, 1)]
        await rig.pass_time(20_000)
        assert (await one.fetch(is_renew_ack=True)).error_code == ErrorCode.INVALID_REQUEST
        one.epoch -= 1  # a refused request leaves the session as it was
        answer = await one.fetch(
            acks=[(0, 0, RENEW)], is_renew_ack=True, max_records=0, max_bytes=0, min_bytes=0
        )
        assert answer.responses[0].partitions[0].acknowledge_error_code == 0
        await rig.pass_time(20_000)
        assert await one.code([(0, 0, REJECT)]) == 0


async def test_deleted_records_are_skipped() -> None:
    async with ShareRig() as rig:
        await rig.append(4, 4)
        one = await rig.member()
        assert await one.acquired(max_records=1) == [(0, 3, 1)]
        await rig.fetching.partition("a").advance_log_start(6)
        assert await one.acquired() == [(6, 7, 1)]
        assert await one.code([(0, 3, ACCEPT)]) == 0


async def test_records_in_objects_are_delivered_to_one_member() -> None:
    async with ShareRig() as rig:
        await rig.append(2, 2)
        one, other = await rig.member("m"), await rig.member("n")
        rig.fetching.data_stream("a").is_cold = True
        both = await asyncio.gather(one.acquired(max_wait_ms=5), other.acquired(max_wait_ms=5))
        assert sorted(both) == [[], [(0, 3, 1)]]


async def test_a_cancelled_read_of_objects_wakes_another_member(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShareRig() as rig:
        await rig.append(2, 2)
        one, other = await rig.member("m"), await rig.member("n")
        stream = rig.fetching.data_stream("a")
        stream.is_cold = True
        fetch, opened = stream.fetch, asyncio.Event()

        async def slow(start_offset: int, max_bytes: int) -> list[StreamRecord]:
            await opened.wait()
            return await fetch(start_offset, max_bytes)

        monkeypatch.setattr(stream, "fetch", slow)
        reading = asyncio.ensure_future(one.acquired(max_wait_ms=60_000))
        await turns()
        waiting = asyncio.ensure_future(other.acquired(max_wait_ms=60_000))
        await turns()
        reading.cancel()
        opened.set()
        assert await asyncio.wait_for(waiting, 30) == [(0, 3, 1)]


async def test_a_request_whose_session_ended_meanwhile_loads_nothing() -> None:
    async with ShareRig() as rig:
        await rig.append(1)
        one = await rig.member()
        assert await one.acquired() == [(0, 0, 1)]
        waiting = asyncio.ensure_future(one.acquired(max_wait_ms=60_000))
        await turns()
        ending = Member(rig, one.name, epoch=-1)  # through another connection
        await ending.acknowledge([])
        await turns()
        assert await waiting == []
        assert len(rig.shares) == 0


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_aborted_records_and_markers_are_not_delivered(isolation_level: str) -> None:
    async with ShareRig({"share.isolation.level": isolation_level}) as rig:
        some = Transactions(rig.fetching)
        some.append(1, count=2)
        await rig.append(1)
        await some.end(1, commits=False)
        some.append(2, count=1)
        await rig.append(1)
        one = await rig.member()
        if isolation_level == "read_uncommitted":
            assert await one.acquired() == [(0, 2, 1), (4, 5, 1)]
            return
        assert await one.acquired() == [(2, 2, 1)]  # the transaction at offset 4 is open
        assert await one.code([(2, 2, ACCEPT)]) == 0
        waiting = asyncio.ensure_future(one.acquired(max_wait_ms=60_000))
        await turns()
        await some.end(2, commits=True)
        assert await waiting == [(4, 5, 1)]


async def test_the_reset_decides_where_a_new_group_begins() -> None:
    for reset, start in (("earliest", 0), ("latest", 5), ("by_duration:PT1H", 5), ("by_duration:P30D", 0)):
        async with ShareRig({"share.auto.offset.reset": reset}) as rig:
            await rig.append(5)
            if reset.startswith("by_duration"):
                rig.fetching.clock.now_ms = 30 * 86_400_000
            await rig.member()
            assert rig.persister.states[rig.key()].start_offset == start, reset


async def test_no_further_records_are_acquired_above_the_memory_bound() -> None:
    count = 6_000
    async with ShareRig(share_memory_bytes_max=1 << 20, group_share_partition_max_record_locks=count) as rig:
        await rig.fetching.create("b")
        await rig.initialize("b")
        await rig.append(count)
        one = await rig.member("m", "a", "b")
        assert await one.acquired(max_records=count, batch_size=count) == [(0, count - 1, 1)]
        assert await one.code([(offset, offset, ACCEPT) for offset in range(1, count, 2)]) == 0
        await rig.append(1, topic="b")
        assert await one.acquired() == []
        assert await one.code([(10, 10, RELEASE)]) == 0
        assert await one.acquired() == [(10, 10, 2)]  # a record in flight
        assert await one.code([(offset, offset, ACCEPT) for offset in range(0, count, 2)]) == 0
        assert await one.acquired() == [(0, 0, 1)]


async def test_the_memory_bound_refuses_further_share_partitions() -> None:
    async with ShareRig(share_memory_bytes_max=1 << 20) as rig:
        rig.shares._memory_bytes_max = 3_000
        await rig.fetching.create("b")
        await rig.initialize("b")
        await rig.append(1)
        await rig.append(1, topic="b")
        one = await rig.member("m", "a")
        assert await one.acquired(["b"]) == [(0, 0, 1)]  # only of a
        assert len(rig.shares) == 1
