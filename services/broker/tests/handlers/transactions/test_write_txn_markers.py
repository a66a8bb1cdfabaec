"""WriteTxnMarkers over real partitions: results per partition, the Txn stream, moves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ponor_broker.handlers.transactions.write_txn_markers import WriteTxnMarkersHandler
from ponor_broker.partitions import marker_writer
from ponor_broker.partitions.marker_writer import MarkerWriter, PlacedMarker
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.peers.connection_order import peer_client_id
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from s3stream.errors import StreamNotFoundError

from services.broker.tests.fetch_rig import OTHER_NODE, FetchRig
from services.broker.tests.handlers.fetch.test_read_committed import Transactions

ABORT = TransactionMarker(1, 0, 0, commits=False)


def row(
    producer_id: int, topics: dict[str, list[int]], *, commits: bool, epoch: int = 0, version: int = 0
) -> WritableTxnMarker:
    places = [WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()]
    return WritableTxnMarker(producer_id, epoch, commits, places, 0, version)


def from_client(client_id: str) -> RequestContext:
    return RequestContext(1, client_id, ConnectionContext("peer:1"))


async def codes(rig: FetchRig, *rows: WritableTxnMarker) -> dict[int, dict[tuple[str, int], int]]:
    handler = WriteTxnMarkersHandler(MarkerWriter(rig.partitions, rig.owned, rig.clock))
    answer = await handler.handle(WriteTxnMarkersRequest(list(rows)), from_client("admin"))
    return {
        marker.producer_id: {
            (topic.name, one.partition_index): one.error_code
            for topic in marker.topics
            for one in topic.partitions
        }
        for marker in answer.markers
    }


async def test_each_partition_has_its_own_result() -> None:
    async with FetchRig() as rig:
        await rig.create("a", 2)
        await rig.create("b", leader=OTHER_NODE)
        some = Transactions(rig)
        some.append(1)
        some.append(2)
        wanted = {"a": [0, 1, 5], "b": [0], "none": [0]}
        found = await codes(rig, row(1, wanted, commits=False), row(2, {"a": [0]}, commits=True))
        assert found == {
            1: {
                ("a", 0): ErrorCode.NONE,
                ("a", 1): ErrorCode.NONE,
                ("a", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("b", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
            2: {("a", 0): ErrorCode.NONE},
        }
        partition = rig.partition("a")
        assert partition.last_stable_offset == partition.high_watermark == 4
        assert partition.state.aborted.find(0, 4) == [(1, 0)]
        late = row(1, {"a": [0]}, commits=True, version=2)
        assert (await codes(rig, late))[1] == {("a", 0): ErrorCode.NONE}, "a repeat"
        some.append(1)
        assert (await codes(rig, late))[1] == {("a", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await codes(rig, row(1, {"a": []}, commits=True)) == {}


class SlowStreams:
    """Creates Txn streams when the test says so."""

    def __init__(self, rig: FetchRig) -> None:
        self._rig = rig
        self.gate = asyncio.Event()
        self.calls = 0
        self.fails = False

    async def add_txn_stream(self, partition: Partition) -> None:
        self.calls += 1
        await self.gate.wait()
        if self.fails:
            raise StreamNotFoundError("no controller")
        await self._rig.owned.add_txn_stream(partition)


async def test_concurrent_aborts_create_one_stream() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        for producer_id in (1, 2, 3):
            some.append(producer_id)
        streams = SlowStreams(rig)
        writer = MarkerWriter(rig.partitions, streams, rig.clock)
        aborts = [PlacedMarker(ABORT._replace(producer_id=number), "a", 0) for number in (1, 2, 3)]
        writing: list[Any] = [asyncio.ensure_future(writer.write([one])) for one in aborts]
        for _ in range(5):
            await asyncio.sleep(0)
        assert rig.partition("a").log_end_offset == 3, "no marker precedes the stream"
        writing[0].cancel()
        streams.gate.set()
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert (outcomes[1:], streams.calls) == ([[ErrorCode.NONE], [ErrorCode.NONE]], 1)
        assert await writer.write(aborts[:1]) == [ErrorCode.NONE]
        assert rig.partition("a").state.aborted.end_offset == 3


async def test_a_stream_that_is_created_slowly_does_not_delay_other_markers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A creation needs the controller. Markers of the same request must not wait for it, because the
    coordinator sends the next ones after the answer.
    """
    monkeypatch.setattr(marker_writer, "STREAM_S_MAX", 0.01)
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        some.append(2)
        streams = SlowStreams(rig)
        handler = WriteTxnMarkersHandler(MarkerWriter(rig.partitions, streams, rig.clock))
        request = WriteTxnMarkersRequest(
            [row(1, {"a": [0]}, commits=False), row(2, {"a": [0]}, commits=True)]
        )
        for _ in range(2):
            answer = await asyncio.wait_for(handler.handle(request, from_client("broker")), 5)
            found = [marker.topics[0].partitions[0].error_code for marker in answer.markers]
            assert found == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
        assert streams.calls == 1
        streams.gate.set()
        while not rig.partition("a").state.aborted.has_stream:
            await asyncio.sleep(0)
        answer = await handler.handle(request, from_client("broker"))
        assert [marker.topics[0].partitions[0].error_code for marker in answer.markers] == [0, 0]


async def test_a_stream_that_is_not_created_is_a_retriable_error() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        Transactions(rig).append(1)
        streams = SlowStreams(rig)
        streams.fails = True
        streams.gate.set()
        writer = MarkerWriter(rig.partitions, streams, rig.clock)
        [code] = await writer.write([PlacedMarker(ABORT, "a", 0)])
        assert code.retriable
        streams.fails = False
        assert await writer.write([PlacedMarker(ABORT, "a", 0)]) == [ErrorCode.NONE]


async def test_markers_are_refused_while_a_partition_moves_and_accepted_by_its_next_leader() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        some.append(2)
        await some.end(2, commits=False)
        streams = SlowStreams(rig)
        writer = MarkerWriter(rig.partitions, streams, rig.clock)
        await rig.begin_move("a")
        assert await writer.write([PlacedMarker(ABORT, "a", 0)]) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await rig.end_move("a", leader=OTHER_NODE)
        await rig.move("a", 0, rig.partitions._node_id, 2)
        partition = rig.partition("a")
        assert (partition.leader_epoch, partition.last_stable_offset) == (2, 0)
        assert await writer.write([PlacedMarker(ABORT, "a", 0)]) == [ErrorCode.NONE]
        found = await partition.state.aborted.read(0, partition.last_stable_offset)
        assert sorted(found) == [(1, 0), (2, 1)]


async def test_markers_of_a_connection_that_was_given_up_are_not_appended() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        Transactions(rig).append(1)
        streams = SlowStreams(rig)
        handler = WriteTxnMarkersHandler(MarkerWriter(rig.partitions, streams, rig.clock))
        old, new = (from_client(peer_client_id(8, 1, number)) for number in (1, 2))
        request = WriteTxnMarkersRequest([row(1, {"a": [0]}, commits=False)])
        waiting = asyncio.ensure_future(handler.handle(request, old))
        for _ in range(5):
            await asyncio.sleep(0)
        # The coordinator gives the request up while the stream is created, and asks on a new connection.
        assert (await handler.handle(WriteTxnMarkersRequest([]), new)).markers == []
        streams.gate.set()
        for answer in (await waiting, await handler.handle(request, old)):
            assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert rig.partition("a").last_stable_offset == 0
        answer = await handler.handle(request, new)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        assert rig.partition("a").last_stable_offset == 2


async def test_refused_markers_are_processed_in_turns() -> None:
    """No refused marker waits for the storage: 100,000 of them held the event loop for 2 s."""
    async with FetchRig() as rig:
        await rig.create("a")
        markers = [PlacedMarker(ABORT, "a", 5)] * (4 * marker_writer.TOGETHER_MAX)
        writing = asyncio.ensure_future(MarkerWriter(rig.partitions, rig.owned, rig.clock).write(markers))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        assert await writing == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(markers)
        assert turns >= 4


async def test_refused_markers_of_many_requests_share_the_turns() -> None:
    """Fifty brokers repeat a thousand markers each after a change of the leader."""
    async with FetchRig() as rig:
        await rig.create("a")
        found = 0
        find = rig.partitions.find

        def counted(topic: str, index: int) -> Partition:
            nonlocal found
            found += 1
            return find(topic, index)

        partitions: Any = SimpleNamespace(find=counted)
        writer = MarkerWriter(partitions, rig.owned, rig.clock)
        markers = [PlacedMarker(ABORT, "a", 5)] * (2 * marker_writer.TOGETHER_MAX)
        writing = [asyncio.ensure_future(writer.write(markers)) for _ in range(50)]
        most = 0
        while not all(one.done() for one in writing):
            before = found
            await asyncio.sleep(0)
            most = max(most, found - before)
        assert found == 50 * len(markers)
        assert most <= marker_writer.TOGETHER_MAX


@pytest.mark.parametrize("partitions", [0, 1])
async def test_a_large_request_is_processed_in_turns(partitions: int) -> None:
    """Rows without partitions need no result, and the bound on rows counts them, too."""
    async with FetchRig() as rig:
        await rig.create("a")
        handler = WriteTxnMarkersHandler(MarkerWriter(rig.partitions, rig.owned, rig.clock))
        request = WriteTxnMarkersRequest([row(1, {"b": [0] * partitions}, commits=True)] * 20_000)
        handling = asyncio.ensure_future(handler.handle(request, from_client("broker")))
        turns = 0
        while not handling.done():
            turns += 1
            await asyncio.sleep(0)
        assert len((await handling).markers) == partitions * 20_000
        assert turns >= 40
        many = WriteTxnMarkersRequest([row(1, {"b": []}, commits=True)] * 60_000)
        with pytest.raises(KafkaWireError, match="names 10000"):
            await handler.handle(many, from_client("broker"))


async def test_topics_without_partitions_are_processed_in_turns() -> None:
    async with FetchRig() as rig:
        handler = WriteTxnMarkersHandler(MarkerWriter(rig.partitions, rig.owned, rig.clock))
        request = WriteTxnMarkersRequest(
            [row(1, {f"t{number}": [] for number in range(50_000)}, commits=True)]
        )
        handling = asyncio.ensure_future(handler.handle(request, from_client("broker")))
        turns = 0
        while not handling.done():
            turns += 1
            await asyncio.sleep(0)
        assert (await handling).markers == []
        assert turns >= 50


async def test_a_large_request_does_not_delay_a_small_one() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        writer = MarkerWriter(rig.partitions, rig.owned, rig.clock)
        large = [PlacedMarker(ABORT, "a", 5)] * (40 * marker_writer.TOGETHER_MAX)
        writing = [asyncio.ensure_future(writer.write(large)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        small = asyncio.ensure_future(writer.write(large[:1]))
        turns = 0
        while not small.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns < 20
        await asyncio.gather(*writing)


async def test_small_requests_share_the_turns() -> None:
    """If other work took 4 ms of a turn, each later request took a turn of its own."""
    async with FetchRig() as rig:
        await rig.create("a")
        writer = MarkerWriter(rig.partitions, rig.owned, rig.clock)
        one = [PlacedMarker(ABORT, "a", 0)]

        def work() -> None:
            rig.clock.now_ms += 5

        writing = [asyncio.ensure_future(writer.write(one))]
        asyncio.get_running_loop().call_soon(work)
        writing += [asyncio.ensure_future(writer.write(one)) for _ in range(50)]
        turns = 0
        while not all(request.done() for request in writing):
            turns += 1
            await asyncio.sleep(0)
        assert [request.result() for request in writing] == [[ErrorCode.NONE]] * 51
        assert turns < 10


async def test_a_request_that_is_cancelled_while_it_waits_for_a_turn_appends_nothing() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        writer = MarkerWriter(rig.partitions, rig.owned, rig.clock)
        many = [PlacedMarker(ABORT, "a", 5)] * marker_writer.TOGETHER_MAX
        one = [PlacedMarker(ABORT, "a", 0)]
        refused, cancelled, written = (
            asyncio.ensure_future(writer.write(markers)) for markers in (many, one, one)
        )
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await written == [ErrorCode.NONE]
        assert cancelled.cancelled()
        assert len(await refused) == len(many)
        assert rig.partition("a").log_end_offset == 1


async def test_markers_that_waited_for_a_stream_are_appended_in_turns() -> None:
    """All requests that wait for one creation continue in the turn in which it ends."""
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        count = 40
        for producer_id in range(count):
            some.append(producer_id)
        streams = SlowStreams(rig)
        writer = MarkerWriter(rig.partitions, streams, rig.clock)
        aborts = [
            PlacedMarker(ABORT._replace(producer_id=number % count), "a", 0)
            for number in range(marker_writer.TOGETHER_MAX)
        ]
        writing = [asyncio.ensure_future(writer.write(aborts)) for _ in range(10)]
        for _ in range(100):
            await asyncio.sleep(0)
        partition = rig.partition("a")
        assert partition.log_end_offset == count, "no marker precedes the stream"
        streams.gate.set()
        most, before = 0, partition.log_end_offset
        while not all(one.done() for one in writing):
            await asyncio.sleep(0)
            most, before = max(most, partition.log_end_offset - before), partition.log_end_offset
        assert partition.log_end_offset == count + 10 * len(aborts)
        assert most <= 2 * marker_writer.TOGETHER_MAX
        assert streams.calls == 1
