"""The coordinator over logs in memory: durability, restarts, timeouts, expiry, bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from ponor_broker.coordination.linear_pattern import LinearPattern
from ponor_broker.transactions import record_codec
from ponor_broker.transactions.coordinator import BatchedAdd, TransactionFilter, states_of
from ponor_broker.transactions.events import AddRequest, ProducerClaim
from ponor_broker.transactions.id_table import ID_BYTES, PARTITION_BYTES, HeldId, IdTable
from ponor_broker.transactions.instructions import Markers
from ponor_broker.transactions.records import EPOCH_MAX, TransactionRecord, TransactionState
from ponor_broker.transactions.settings import TransactionSettings
from ponor_broker.transactions.transaction import RETRY_MS
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.primitives import Buffer
from ponor_runtime.identity import ProducerId
from ponor_runtime.turns import at_once
from s3stream.errors import StreamFencedError

from services.broker.tests.transactions.coordinator_world import OFFSETS_PARTITION, TransactionWorld


@pytest.fixture
async def world() -> AsyncIterator[TransactionWorld]:
    world = TransactionWorld()
    await world.start()
    yield world
    await world.coordinator.close()
    assert world.failures == []


async def open_transaction(world: TransactionWorld, name: str = "x") -> None:
    assert (await world.init(name)).startswith("NONE 100")
    record = await world.coordinator.describe(name)
    assert isinstance(record, TransactionRecord)
    assert await world.add(record.producer_id, record.producer_epoch, 0, 1, name=name) == "NONE"


async def test_one_transaction(world: TransactionWorld) -> None:
    assert await world.init() == "NONE 1000/0"
    assert await world.add(1000, 0, 0, 1) == "NONE"
    claim = ProducerClaim(ProducerId(1000), 0)
    asked = AddRequest(claim, {("t", 1), ("t", 2)}, is_generation_2=False)
    assert world.coordinator.verify_partitions("x", asked) == {
        ("t", 1): ErrorCode.NONE,
        ("t", 2): ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert await world.coordinator.add_offsets("x", claim, "g") is ErrorCode.NONE
    assert await world.end(1000, 0) == "NONE 1000/1"
    assert await world.state() == "PrepareCommit 1000/1"

    (sent,) = world.sent
    assert sent.coordinator_epoch == 1
    assert sent.markers.is_commit
    assert sent.markers.partitions == {("t", 0), ("t", 1), (OFFSETS_TOPIC, OFFSETS_PARTITION)}
    sent.finish()
    await world.clock.settle()

    assert await world.state() == "CompleteCommit 1000/1"
    assert await world.add(1000, 1, 0) == "NONE"


async def test_first_request_creates_the_topic() -> None:
    world = TransactionWorld(TransactionSettings())
    world.exists = False
    coordinator = await world.start()
    assert await coordinator.shards.find(["x"]) == [None]
    await world.clock.pass_ms(100)

    (address,) = await coordinator.shards.find(["x"])
    assert address is not None
    assert await world.init() == "NONE 1000/0"
    await coordinator.close()


async def test_nothing_follows_before_the_record_is_durable(world: TransactionWorld) -> None:
    await open_transaction(world)
    world.partition_of("x").is_slow = True

    end = asyncio.ensure_future(world.end(1000, 0))
    await world.clock.settle()
    assert not end.done()
    assert world.sent == []
    assert await world.state() == "Ongoing 1000/0"
    assert await world.end(1000, 0, commit=False) == "CONCURRENT_TRANSACTIONS"

    world.partition_of("x").sync()
    assert await end == "NONE 1000/1"
    assert len(world.sent) == 1


async def test_answer_has_a_deadline_and_the_change_succeeds_later(world: TransactionWorld) -> None:
    await open_transaction(world)
    world.partition_of("x").is_slow = True
    end = asyncio.ensure_future(world.end(1000, 0))
    await world.clock.pass_ms(world.settings.transaction_write_timeout_ms)
    assert await end == "COORDINATOR_NOT_AVAILABLE"

    world.partition_of("x").sync()
    await world.clock.settle()

    assert await world.state() == "PrepareCommit 1000/1"
    assert len(world.sent) == 1


async def test_failed_append_changes_nothing(world: TransactionWorld) -> None:
    await open_transaction(world)
    world.partition_of("x").refusal = StreamFencedError("another broker leads")
    assert await world.end(1000, 0) == "NOT_COORDINATOR"
    assert await world.state() == "Ongoing 1000/0"


async def test_open_transaction_survives_a_restart(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.clock.pass_ms(50_000)
    await world.restart()

    await world.clock.pass_ms(59_000)
    assert await world.state() == "Ongoing 1000/0", "it has its whole timeout again"
    assert await world.end(1000, 0) == "NONE 1000/1"


@pytest.mark.parametrize("commit", [True, False])
async def test_restart_sends_the_markers_of_a_decided_transaction_again(
    world: TransactionWorld, commit: bool
) -> None:
    await open_transaction(world)
    await world.end(1000, 0, commit=commit)
    await world.restart()

    before, after = world.sent
    assert after.markers == before.markers
    assert (before.coordinator_epoch, after.coordinator_epoch) == (1, 2)
    after.finish()
    await world.clock.settle()
    assert await world.state() == f"Complete{'Commit' if commit else 'Abort'} 1000/1"

    await world.restart()
    assert len(world.sent) == 2
    assert await world.end(1000, 0, commit=commit) == "NONE 1000/1", "the answer was lost"


async def test_crash_before_the_outcome_is_durable(
    world: TransactionWorld,
) -> None:
    await open_transaction(world)
    world.partition_of("x").is_slow = True
    end = asyncio.ensure_future(world.end(1000, 0))
    await world.clock.settle()
    await world.restart()
    end.cancel()

    assert await world.state() == "Ongoing 1000/0"
    assert world.sent == []
    assert await world.end(1000, 0, commit=False) == "NONE 1000/1"


async def test_timeout_aborts(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.clock.pass_ms(59_900)
    assert await world.state() == "Ongoing 1000/0"
    await world.clock.pass_ms(200)
    assert await world.state() == "PrepareAbort 1000/1"
    assert not world.sent[0].markers.is_commit
    world.sent[0].finish()
    await world.clock.settle()
    assert await world.add(1000, 0, 1) == "PRODUCER_FENCED"


async def test_timeout_counts_from_the_begin_of_this_transaction(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.clock.pass_ms(40_000)
    await world.end(1000, 0)
    world.sent[0].finish()
    await world.clock.settle()
    await world.add(1000, 1, 0)
    await world.clock.pass_ms(40_000)
    await world.add(1000, 1, 1)
    assert await world.state() == "Ongoing 1000/1"
    await world.clock.pass_ms(20_100)
    assert await world.state() == "PrepareAbort 1000/2", "a further partition does not prolong it"


async def test_absence_of_the_coordinator_does_not_abort(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.clock.pass_ms(50_000)
    await world.clock.be_absent_ms(3_600_000)
    assert await world.state() == "Ongoing 1000/0", "requests that arrived meanwhile come first"
    await world.clock.pass_ms(2_000)
    assert await world.state() == "PrepareAbort 1000/1"


async def test_a_fenced_broker_does_not_abort(world: TransactionWorld) -> None:
    await open_transaction(world)
    world.permission.withdraw()
    assert await world.init() == "NOT_COORDINATOR"
    await world.clock.pass_ms(600_000)
    world.permission.restore()
    assert await world.state() == "Ongoing 1000/0"


async def test_timeout_at_the_last_epoch_takes_a_producer_id(world: TransactionWorld) -> None:
    await open_transaction(world)
    await exhaust(world)
    world.next_producer_id = None
    await world.clock.pass_ms(60_100)
    assert await world.state() == f"Ongoing 1000/{EPOCH_MAX - 1}", "the controller gives no ids"

    world.next_producer_id = 2_000
    await world.clock.pass_ms(RETRY_MS)
    world.sent[-1].finish()
    await world.clock.settle()
    assert await world.state() == "CompleteAbort 2000/0"


async def exhaust(world: TransactionWorld) -> None:
    """Give the id's producer its last epoch."""
    held = world.coordinator.shards.by_index[world.coordinator.shards.partition_of("x")]._table.get("x")
    assert held is not None
    assert held.transaction.record is not None
    held.transaction.record = replace(held.transaction.record, producer_epoch=EPOCH_MAX - 1)


async def test_last_epoch_rotates_the_producer_id(world: TransactionWorld) -> None:
    await open_transaction(world)
    await exhaust(world)
    world.next_producer_id = None
    assert await world.end(1000, EPOCH_MAX - 1) == "COORDINATOR_LOAD_IN_PROGRESS"
    world.next_producer_id = 2_000
    assert await world.end(1000, EPOCH_MAX - 1) == "NONE 2000/0"


async def test_closed_partition_answers_and_stops_its_markers(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.end(1000, 0)
    await open_transaction(world, "y")
    assert world.partition_of("x") is not world.partition_of("y")
    world.partition_of("y").is_slow = True
    end = asyncio.ensure_future(world.end(1001, 0, name="y"))
    await world.clock.settle()

    for index in list(world.open):
        world.close_partition(index)
    await world.clock.settle()

    assert await end == "NOT_COORDINATOR"
    assert world.sent[0].is_cancelled
    assert await world.init() == "NOT_COORDINATOR"
    assert world.coordinator.budget.size_bytes == 0
    assert set(world.coordinator.budget.by_state.values()) == {0}


async def test_failed_completion_is_written_later(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.end(1000, 0)
    partition = world.partition_of("x")
    partition.refusal = StreamFencedError("not now")
    world.sent[0].finish()
    await world.clock.settle()
    assert await world.state() == "PrepareCommit 1000/1"

    partition.refusal = None
    await world.clock.pass_ms(RETRY_MS)
    assert await world.state() == "CompleteCommit 1000/1"


async def test_refused_markers_end_the_transaction(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.end(1000, 0)
    world.sent[0].finish({("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH})
    await world.clock.settle()
    assert await world.state() == "CompleteCommit 1000/1"


async def test_unused_ids_expire() -> None:
    settings = TransactionSettings(
        transactional_id_expiration_ms=10_000, transactional_id_expiry_interval_ms=1_000
    )
    world = TransactionWorld(settings)
    await world.start()
    await open_transaction(world, "open")
    await world.init("unused")
    await world.clock.pass_ms(9_000)
    assert await world.state("unused") == "Empty 1001/0"
    await world.clock.pass_ms(2_100)
    assert await world.state("unused") == "TRANSACTIONAL_ID_NOT_FOUND"

    await world.restart()
    assert await world.state("unused") == "TRANSACTIONAL_ID_NOT_FOUND"
    assert await world.state("open") == "Ongoing 1000/0"
    assert await world.end(1001, 0, name="unused") == "INVALID_PRODUCER_ID_MAPPING"
    assert await world.init("unused") == "NONE 1002/0"
    await world.coordinator.close()
    assert world.failures == []


async def test_memory_is_bounded() -> None:
    bound = 64 << 10
    world = TransactionWorld(TransactionSettings(transactions_memory_bytes_max=bound))
    await world.start()
    ids = bound // (ID_BYTES + 3)
    for number in range(ids):
        assert (await world.init(f"{number:03}")).startswith("NONE")
    assert await world.init("one more") == "COORDINATOR_NOT_AVAILABLE"
    assert (await world.init("000")).startswith("NONE"), "an existing id continues"
    room = (bound - world.coordinator.budget.size_bytes) // PARTITION_BYTES
    assert await world.add(1001, 0, *range(room + 1), name="001") == "COORDINATOR_NOT_AVAILABLE"
    assert await world.add(1001, 0, *range(room), name="001") == "NONE"
    await world.coordinator.close()


async def test_requests_of_wrong_form(world: TransactionWorld) -> None:
    assert await world.init("") == "INVALID_REQUEST"
    assert await world.init("x" * 40_000) == "INVALID_REQUEST"
    assert await world.init(ms=0) == "INVALID_TRANSACTION_TIMEOUT"
    assert await world.init(ms=900_001) == "INVALID_TRANSACTION_TIMEOUT"
    assert await world.add(1000, 0, 0) == "INVALID_PRODUCER_ID_MAPPING"
    assert await world.end(1000, 0) == "INVALID_PRODUCER_ID_MAPPING"
    assert await world.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    world.next_producer_id = None
    assert await world.init() == "COORDINATOR_LOAD_IN_PROGRESS"


async def test_two_producers_begin_at_once(world: TransactionWorld) -> None:
    told = await asyncio.gather(world.init(), world.init())
    assert sorted(told) == ["CONCURRENT_TRANSACTIONS", "NONE 1000/0"]


async def test_ids_of_a_loading_partition(world: TransactionWorld) -> None:
    await open_transaction(world)
    await world.kill()
    world.exists = False
    await world.start()
    world.exists = True
    for index in world.logs:
        world.open_partition(index).read_failures = 1
    assert await world.end(1000, 0) == "COORDINATOR_LOAD_IN_PROGRESS"
    assert at_once(world.coordinator.list_transactions(TransactionFilter())) is (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    await world.clock.pass_ms(1_000)
    assert await world.end(1000, 0) == "NONE 1000/1"


async def test_log_is_rewritten() -> None:
    world = TransactionWorld(
        TransactionSettings(transaction_rewrite_log_bytes_min=2_000, transaction_rewrite_ratio=2)
    )
    await world.start()
    await open_transaction(world)
    for epoch in range(100):
        await world.add(1000, epoch, 0)
        assert await world.end(1000, epoch) == f"NONE 1000/{epoch + 1}"
        world.sent[-1].finish()
        await world.clock.settle()

    shard = world.coordinator.shards.by_index[world.coordinator.shards.partition_of("x")]
    assert shard.log_size_bytes < 4_000
    await world.restart()
    assert await world.state() == "CompleteCommit 1000/100"
    await world.coordinator.close()
    assert world.failures == []


async def test_list_with_filters(world: TransactionWorld) -> None:
    await open_transaction(world, "open")
    await world.init("empty")
    await world.clock.pass_ms(5_000)

    def listed(wanted: TransactionFilter) -> list[str]:
        found = at_once(world.coordinator.list_transactions(wanted))
        assert not isinstance(found, ErrorCode)
        return sorted(name for name, _ in found)

    states, unknown = states_of(["Ongoing", "PrepareEpochFence", "Broken"])
    assert unknown == ["Broken"]
    assert states == {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}
    assert listed(TransactionFilter()) == ["empty", "open"]
    assert listed(TransactionFilter(states=states)) == ["open"]
    assert listed(TransactionFilter(producer_ids=frozenset({1001}))) == ["empty"]
    assert listed(TransactionFilter(states=states, longer_than_ms=4_000)) == ["open"]
    assert listed(TransactionFilter(states=states, longer_than_ms=6_000)) == []
    assert listed(TransactionFilter(pattern=LinearPattern("(?i)O.*N"))) == ["open"]
    assert listed(TransactionFilter(pattern=LinearPattern("pe"))) == []


async def test_batched_transactions_do_not_wait_for_a_shard_that_loads() -> None:
    """Requests of one leader follow one another: a slow load must not delay transactions of other shards."""
    world = TransactionWorld()
    world.settings = replace(world.settings, transaction_wait_ms_max=2_000)
    await world.start()
    await open_transaction(world)
    loading = next(
        name for name in map(str, range(99)) if partition_of(world, name) != partition_of(world, "x")
    )
    claim = ProducerClaim(ProducerId(1000), 0)
    world.close_partition(partition_of(world, loading))
    world.is_led = True

    batch = [
        BatchedAdd(name, AddRequest(claim, {("t", 1)}, True), is_verify_only)
        for name in ("x", loading)
        for is_verify_only in (False, True)
    ]
    answer = asyncio.ensure_future(world.coordinator.add_batched(batch))
    await world.clock.settle()

    assert answer.done()
    loads = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert answer.result() == [ErrorCode.NONE, {("t", 1): ErrorCode.NONE}, loads, loads]
    await world.coordinator.close()


def partition_of(world: TransactionWorld, transactional_id: str) -> int:
    return world.coordinator.shards.partition_of(transactional_id)


async def test_transactions_with_many_partitions_are_restored_and_freed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TransactionWorld()
    await world.start()
    for number in range(60):
        assert await world.init(str(number)) == f"NONE {1_000 + number}/0"
        assert await world.add(1_000 + number, 0, *range(500), name=str(number)) == "NONE"
        assert (await world.end(1_000 + number, 0, name=str(number))).startswith("NONE")
    in_turns = PerTurn()
    decode = record_codec._decode

    def decoded(value: Buffer) -> TransactionRecord:
        record = decode(value)
        in_turns.note("replayed", len(record.partitions))
        return record

    def sent(_shard: int, _epoch: int, markers: Markers, _done: object) -> None:
        in_turns.note("restored", len(markers.partitions))

    def removed(table: IdTable, held: HeldId) -> None:
        record = held.transaction.record
        in_turns.note("freed", 0 if record is None else len(record.partitions))
        remove(table, held)

    remove = IdTable.remove
    monkeypatch.setattr(record_codec, "_decode", decoded)
    monkeypatch.setattr(world, "send", sent)
    monkeypatch.setattr(IdTable, "remove", removed)
    await world.restart()
    while not world.coordinator.shards.is_whole:
        await world.clock.settle()
    await world.coordinator.close()

    assert in_turns.most.keys() == {"replayed", "restored", "freed"}
    # Two shards work in the same turn. A turn may exceed the bound by one id.
    assert max(in_turns.most["restored"], in_turns.most["freed"]) <= 2 * (1_600 + 500)
    assert in_turns.most["replayed"] <= 2 * 17_000


class PerTurn:
    """The largest amount of each kind of work in a turn of the event loop."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    def note(self, kind: str, amount: int) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._now.clear)
        self._now[kind] += amount
        self.most |= self._now


async def test_batched_transactions_have_their_own_results(world: TransactionWorld) -> None:
    await open_transaction(world)
    await open_transaction(world, "y")
    first, second = (ProducerClaim(ProducerId(one), 0) for one in (1000, 1001))

    results = await world.coordinator.add_batched(
        [
            BatchedAdd("x", AddRequest(first, {("t", 5)}, True), False),
            BatchedAdd("x", AddRequest(first, {("t", 6)}, True), False),
            BatchedAdd("y", AddRequest(second, {("t", 1), ("t", 5)}, False), True),
            BatchedAdd("y", AddRequest(first, {("t", 1)}, False), True),
            BatchedAdd("", AddRequest(first, {("t", 1)}, True), False),
        ]
    )

    assert results == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        {("t", 1): ErrorCode.NONE, ("t", 5): ErrorCode.TRANSACTION_ABORTABLE},
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_REQUEST,
    ]
