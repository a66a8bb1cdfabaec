"""Fetches that stand for themselves: sizes, waits, errors, diverging logs, old data."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from ponor_broker.handlers.fetch import fetch
from ponor_broker.settings import BrokerSettings
from ponor_kafka.errors import ErrorCode, KafkaWireError
from s3stream.records import StreamRecord

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, base_offsets

A, B = ("a", 0), ("b", 0)
LONG_MS = 60_000


class TestSizes:
    async def test_the_first_batch_is_returned_whatever_its_size(self) -> None:
        async with FetchRig() as rig:
            for topic in "ab":
                await rig.create(topic)
                await rig.append(topic)
                await rig.append(topic)
            answers = rig.answers(await rig.fetch([(A, 0), (B, 0)], max_bytes=1))
            assert (base_offsets(answers[A]), base_offsets(answers[B])) == ([0], [])
            assert answers[B].high_watermark == 2, "a partition without room is described all the same"
            answers = rig.answers(await rig.fetch([(A, 0), (B, 0)], partition_max_bytes=1))
            assert (base_offsets(answers[A]), base_offsets(answers[B])) == ([0], []), (
                "only the first is let in"
            )

    async def test_batches_that_fit_exactly_are_all_returned(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            for _ in range(3):
                await rig.append("a")
            size_bytes = len(rig.data_stream("a").records[0].payload)
            answers = rig.answers(await rig.fetch([(A, 0)], partition_max_bytes=2 * size_bytes))
            assert base_offsets(answers[A]) == [0, 1]
            answers = rig.answers(await rig.fetch([(A, 0)], partition_max_bytes=2 * size_bytes - 1))
            assert base_offsets(answers[A]) == [0]

    async def test_a_negative_size_is_an_error_if_there_is_data(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.append("a")
            answer = rig.answers(await rig.fetch([(A, 0)], partition_max_bytes=-1))[A]
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert rig.answers(await rig.fetch([(A, 1)], partition_max_bytes=-1))[A].error_code == 0

    async def test_a_partition_named_twice_is_answered_once(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.append("a")
            await rig.append("a")
            (topic,) = (await rig.fetch([(A, 0), (A, 1)])).responses
            assert [base_offsets(one) for one in topic.partitions] == [[1]], "what was said last"

    async def test_an_offset_within_a_batch_returns_the_batch(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.append("a", records=10)
            assert base_offsets(rig.answers(await rig.fetch([(A, 7)]))[A]) == [0]

    async def test_answers_have_one_batch_while_clients_do_not_read(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            for _ in range(3):
                await rig.append("a")
            rig.backlog.replace(0, 1 << 30)
            assert base_offsets(rig.answers(await rig.fetch([(A, 0)]))[A]) == [0]

    async def test_a_fetch_of_too_many_partitions_is_malformed(self) -> None:
        async with FetchRig(settings=BrokerSettings(fetch_partitions_max=2)) as rig:
            with pytest.raises(KafkaWireError, match="raise fetch_partitions_max"):
                rig.start([(("a", index), 0) for index in range(3)])


class TestWaiting:
    async def test_min_bytes_counts_all_partitions(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.create("b")
            waiting = rig.start([(A, 0), (B, 0)], max_wait_ms=LONG_MS, min_bytes=100)
            await rig.append("a")
            await asyncio.sleep(0)
            assert not waiting.done()
            await rig.append("b")
            answers = rig.answers(await waiting)
            assert (base_offsets(answers[A]), base_offsets(answers[B])) == ([0], [0])

    async def test_an_error_is_answered_immediately(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.create("b", leader=OTHER_NODE)
            answers = rig.answers(await rig.fetch([(A, 0), (B, 0)], max_wait_ms=LONG_MS, version=12))
            assert answers[B].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert answers[A].error_code == 0

    @pytest.mark.parametrize("epoch", [-1, 0])
    async def test_an_unknown_topic_waits_only_with_other_topics(self, epoch: int) -> None:
        """As Kafka: else a client that goes on asking for a deleted topic would ask in a tight loop."""
        async with FetchRig() as rig:
            await rig.create("a")
            nowhere = ("nowhere", 0)
            waiting = rig.start([(A, 0), (nowhere, 0)], max_wait_ms=LONG_MS, version=12, epoch=epoch)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            await rig.append("a")
            answers = rig.answers(await waiting)
            assert base_offsets(answers[A]) == [0]
            assert answers[nowhere].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            alone = await rig.fetch([(nowhere, 0)], max_wait_ms=LONG_MS, version=12, epoch=epoch)
            assert rig.answers(alone)[nowhere].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def test_an_empty_session_is_answered_immediately(self) -> None:
        async with FetchRig() as rig:
            assert (await rig.fetch(max_wait_ms=LONG_MS, epoch=0)).responses == []

    @pytest.mark.parametrize("epoch", [-1, 0])
    async def test_a_large_request_waits_briefly(self, epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Large requests share a budget: 32 that waited for 5 minutes stopped those of all other clients."""
        monkeypatch.setattr(fetch, "LARGE_WAIT_MS_MAX", 1)
        async with FetchRig() as rig:
            await rig.create("a")
            small = rig.start([(A, 0)], max_wait_ms=LONG_MS, epoch=epoch)
            async with asyncio.timeout(LONG_MS / 2_000):
                answers = rig.answers(await rig.start([(A, 0)] * 400, max_wait_ms=LONG_MS, epoch=epoch))
            assert base_offsets(answers[A]) == []
            assert not small.done()
            await rig.append("a")
            assert base_offsets(rig.answers(await small)[A]) == [0]

    async def test_fetches_beyond_the_parking_bound_are_answered_immediately(self) -> None:
        async with FetchRig(settings=BrokerSettings(parked_fetches_max=1)) as rig:
            await rig.create("a")
            waiting = rig.start([(A, 0)], max_wait_ms=LONG_MS)
            await asyncio.sleep(0)
            assert dict(rig.telemetry.gauges("ponor_fetches_parked"))[()] == 1
            assert base_offsets(rig.answers(await rig.fetch([(A, 0)], max_wait_ms=LONG_MS))[A]) == []
            await rig.append("a")
            await waiting
            assert dict(rig.telemetry.gauges("ponor_fetches_parked"))[()] == 0

    async def test_data_from_before_the_wait_counts_and_is_returned(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.append("a")
            waiting = rig.start([(A, 0)], max_wait_ms=LONG_MS, min_bytes=200)
            await rig.append("a")
            await asyncio.sleep(0)
            assert not waiting.done()
            await rig.append("a")
            assert base_offsets(rig.answers(await waiting)[A]) == [0, 1, 2]


class TestEpochs:
    async def test_an_outdated_leader_epoch_gets_a_leader_hint(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a", epoch=3)
            for version, has_hint in ((16, True), (15, False)):
                response = await rig.fetch([(A, 0)], leader_epoch=2, version=version)
                refused = rig.answers(response)[A]
                assert refused.error_code == ErrorCode.FENCED_LEADER_EPOCH
                assert (refused.current_leader is not None) == has_hint
                assert [one.node_id for one in response.node_endpoints] == ([NODE] if has_hint else [])
            newer = rig.answers(await rig.fetch([(A, 0)], leader_epoch=4))[A]
            assert (newer.error_code, newer.current_leader) == (ErrorCode.UNKNOWN_LEADER_EPOCH, None)
            assert rig.answers(await rig.fetch([(A, 0)], leader_epoch=3))[A].error_code == 0

    async def test_a_diverging_reader_gets_the_point_of_divergence(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a", epoch=1)
            for _ in range(5):
                await rig.append("a")
            await rig.move("a", 0, OTHER_NODE, 2)
            await rig.move("a", 0, NODE, 4)
            for _ in range(3):
                await rig.append("a")
            same = rig.answers(await rig.fetch([(A, 5)], last_fetched_epoch=1))[A]
            assert (same.diverging_epoch, base_offsets(same)) == (None, [5, 6, 7])
            ahead = await rig.fetch([(A, 7)], last_fetched_epoch=1, max_wait_ms=LONG_MS)
            parting = rig.answers(ahead)[A].diverging_epoch
            assert parting is not None
            assert (parting.epoch, parting.end_offset) == (1, 5)
            between = rig.answers(await rig.fetch([(A, 6)], last_fetched_epoch=3))[A].diverging_epoch
            assert between is not None
            assert (between.epoch, between.end_offset) == (1, 5)
            unknown = rig.answers(await rig.fetch([(A, 6)], last_fetched_epoch=5))[A]
            assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            old_version = rig.answers(await rig.fetch([(A, 7)], version=11))[A]
            assert base_offsets(old_version) == [7]

    async def test_offsets_outside_are_refused(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.append("a")
            answers = {offset: rig.answers(await rig.fetch([(A, offset)]))[A] for offset in (-1, 1, 2)}
            codes = {offset: answer.error_code for offset, answer in answers.items()}
            assert codes == {-1: ErrorCode.OFFSET_OUT_OF_RANGE, 1: 0, 2: ErrorCode.OFFSET_OUT_OF_RANGE}


class TestOldData:
    async def test_old_data_is_returned_together_with_new_data(self) -> None:
        async with FetchRig() as rig:
            for topic in "ab":
                await rig.create(topic)
                await rig.append(topic)
            rig.data_stream("a").is_cold = True
            answers = rig.answers(await rig.fetch([(A, 0), (B, 0)]))
            assert (base_offsets(answers[A]), base_offsets(answers[B])) == ([0], [0])

    async def test_old_data_is_returned_in_a_session(self) -> None:
        async with FetchRig() as rig:
            for topic in "ab":
                await rig.create(topic)
                await rig.append(topic)
            rig.data_stream("a").is_cold = True
            first = await rig.fetch([(A, 0), (B, 0)], epoch=0, max_bytes=1)
            assert {key: base_offsets(one) for key, one in rig.answers(first).items()} == {A: [], B: [0]}
            second = await rig.fetch([(B, 1)], session_id=first.session_id, epoch=1)
            assert {key: base_offsets(one) for key, one in rig.answers(second).items()} == {A: [0]}
            third = await rig.fetch([(A, 1)], session_id=first.session_id, epoch=2)
            assert rig.answers(third) == {}

    async def test_a_fetch_reads_a_bounded_number_of_cold_partitions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Few bytes of each of many: they do not take the places of other clients' reads."""
        monkeypatch.setattr(fetch, "COLD_PARTITIONS_MAX", 20)
        async with FetchRig() as rig:
            await rig.create("a", 30)
            for index in range(30):
                await rig.append("a", index)
                rig.data_stream("a", index).is_cold = True
            wanted = [(("a", index), 0) for index in range(30)]
            first = await rig.fetch(wanted, epoch=0, partition_max_bytes=200)
            read = [key for key, one in rig.answers(first).items() if base_offsets(one)]
            assert read == [("a", index) for index in range(20)]
            assert {one.error_code for one in rig.answers(first).values()} == {ErrorCode.NONE}
            went_on = [(key, 1) for key in read]
            second = await rig.fetch(went_on, session_id=first.session_id, epoch=1, partition_max_bytes=200)
            read = [key for key, one in rig.answers(second).items() if base_offsets(one)]
            assert read == [("a", index) for index in range(20, 30)]

    async def test_a_parked_fetch_reads_in_its_own_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An append wakes the fetch. If its data was evicted again, it is read in the context of the fetch,
        not of the append.
        """
        async with FetchRig() as rig:
            await rig.create("a")
            stream, whose = rig.data_stream("a"), contextvars.ContextVar("whose", default="none")
            read = stream.fetch
            seen: list[str] = []

            async def noting(start_offset: int, max_bytes: int) -> list[StreamRecord]:
                seen.append(whose.get())
                return await read(start_offset, max_bytes)

            monkeypatch.setattr(stream, "fetch", noting)
            whose.set("the reader's")
            waiting = rig.start([(A, 0)], max_wait_ms=20_000)
            whose.set("the writer's")
            stream.is_cold = True
            await rig.append("a")
            assert base_offsets(rig.answers(await waiting)[A]) == [0]
            assert seen == ["the reader's"]

    async def test_an_overtaken_request_returns_no_batches(self) -> None:
        async with FetchRig() as rig:
            await rig.create("a")
            await rig.append("a")
            await rig.append("a")
            session_id = (await rig.fetch([(A, 2)], epoch=0)).session_id
            rig.data_stream("a").is_cold = True
            slow = rig.start([(A, 0)], session_id=session_id, epoch=1)
            next_one = rig.start([(A, 1)], session_id=session_id, epoch=2)
            assert (await slow).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            assert base_offsets(rig.answers(await next_one)[A]) == [1]
