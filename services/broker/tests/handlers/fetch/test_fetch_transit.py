"""Fetches of a partition that moves: which ones wait, and their answers."""

from __future__ import annotations

import asyncio

from ponor_broker.settings import BrokerSettings
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.topics import MOVES

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, base_offsets

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_sealed_partition_is_readable_until_its_streams_may_be_closed() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.append("t")
        rig.data_stream("t").hold = True
        partition = rig.partition("t")
        rig.streams.streams[partition.meta_stream.stream.stream_id].hold = True
        await rig.begin_move("t")
        assert not partition.is_writable
        assert rig.controller.left == [], "its last entry is not durable yet"
        one = rig.answers(await rig.fetch([(("t", 0), 0)]))["t", 0]
        assert (one.error_code, one.high_watermark) == (ErrorCode.NONE, 1)


async def test_a_full_fetch_waits_for_the_move_and_names_the_new_leader() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.create("u")
        await rig.append("t")
        await rig.append("u")
        await rig.begin_move("t")
        assert len(rig.controller.left) == 1
        waiting = rig.start([(("t", 0), 0), (("u", 0), 0)])
        await turns()
        assert not waiting.done(), "it has to name both"
        await rig.end_move("t")
        answers = rig.answers(await waiting)
        assert answers["t", 0].error_code == NOT_LEADER
        assert answers["t", 0].high_watermark == -1
        hint = answers["t", 0].current_leader
        assert hint is not None
        assert (hint.leader_id, hint.leader_epoch) == (OTHER_NODE, 1)
        assert base_offsets(answers["u", 0]) == [0]


async def test_an_incremental_fetch_omits_partitions_that_move() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.create("u")
        first = await rig.fetch([(("t", 0), 0), (("u", 0), 0)], epoch=0)
        session_id = first.session_id
        await rig.begin_move("t")
        await rig.append("u")
        answers = rig.answers(await rig.fetch(session_id=session_id, epoch=1, max_wait_ms=20_000))
        assert {key: base_offsets(data) for key, data in answers.items()} == {("u", 0): [0]}
        waiting = rig.start([(("u", 0), 1)], session_id=session_id, epoch=2, max_wait_ms=20_000)
        await turns()
        assert not waiting.done()
        await rig.end_move("t")
        answers = rig.answers(await waiting)
        assert answers["t", 0].error_code == NOT_LEADER
        assert ("u", 0) not in answers


async def test_a_parked_fetch_is_answered_when_the_move_ends() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        waiting = rig.start([(("t", 0), 0)], max_wait_ms=20_000)
        await rig.begin_move("t")
        assert not waiting.done()
        await rig.end_move("t")
        assert rig.answers(await waiting)["t", 0].error_code == NOT_LEADER


async def test_a_cancelled_move_only_delays_a_fetch() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.append("t")
        await rig.begin_move("t")
        waiting = rig.start([(("t", 0), 0)])
        await turns()
        assert not waiting.done()
        await rig.end_move("t", leader=NODE, epoch=1)
        one = rig.answers(await waiting)["t", 0]
        assert (one.error_code, base_offsets(one)) == (ErrorCode.NONE, [0])
        assert rig.partition("t").leader_epoch == 1


async def test_the_wait_for_a_moving_partition_is_bounded() -> None:
    async with FetchRig(settings=BrokerSettings(park_ms_max=10)) as rig:
        await rig.create("t")
        await rig.begin_move("t")
        one = rig.answers(await rig.fetch([(("t", 0), 0)], max_wait_ms=20_000))["t", 0]
        assert one.error_code == NOT_LEADER
        again = rig.start([(("t", 0), 0)], max_wait_ms=20_000)
        await turns()
        assert again.done(), "once is enough: the partition is not waited for any more"


async def test_a_fetch_at_the_target_waits_for_its_election() -> None:
    async with FetchRig() as rig:
        await rig.create("t", leader=OTHER_NODE)
        await rig.begin_move("t", target=NODE)
        waiting = rig.start([(("t", 0), 0)])
        await turns()
        assert not waiting.done()
        await rig.end_move("t", leader=NODE, epoch=1)
        assert rig.answers(await waiting)["t", 0].error_code == ErrorCode.NONE


async def test_a_topic_deleted_during_a_move_is_unknown() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        await rig.begin_move("t")
        waiting = rig.start([(("t", 0), 0)])
        await turns()
        rig.image[MOVES].delete((rig.topic_ids["t"], 0))
        await rig.delete("t")
        answer = rig.answers(await waiting)["t", 0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert len(rig.source) == 0
