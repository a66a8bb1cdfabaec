"""TxnOffsetCommit from request bytes to response bytes; the test answers for the transaction coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.coordination import record_log
from ponor_broker.coordination.transactional_append import Verification
from ponor_broker.groups import shard as group_shard
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.groups.pending_offsets import PendingOffsets
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.handlers.groups.groups import group_handlers
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_broker.transactions.verification import Claim, WaitingBatch
from ponor_broker.transactions.verification_errors import TransactionalWrite, error_for
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.message import Message
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ponor_kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

PRODUCER_ID = 70
VERSIONS = range(6)


class FakeVerifier:
    """Answers each verification with `error`. Calls `before` first, while the handler waits."""

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        self.asked: list[tuple[tuple[str, int], Claim, TransactionalWrite]] = []
        self.before: Callable[[], None] = lambda: None

    def is_waiting(self, _where: tuple[str, int], _producer_id: int) -> bool:
        return False

    def submit(self, where: tuple[str, int], claim: Claim, batch: WaitingBatch[Verification]) -> None:
        self.asked.append((where, claim, batch.write))
        proof = batch.take_proof()
        self.before()
        batch.settled(error_for(batch.write, self.error), proof)


class Client:
    """Sends requests as bytes."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.verifier = FakeVerifier()
        rows = group_handlers(world.coordinator, world, world.clock, self.verifier)  # type: ignore[arg-type]
        self.handlers = {row.key: row for row in rows}

    async def send(self, key: ApiKey, version: int, request: Message) -> Any:
        read, _ = decode(key, version, encode(request, version))
        context = RequestContext(version, "client", ConnectionContext("127.0.0.1:5"))
        response = await self.handlers[key].handle(read, context)
        assert response is not None
        answer, _ = decode_response(key, version, encode(response, version))
        return answer

    async def commit(
        self,
        offset: int,
        *,
        version: int = 5,
        group: str = "g",
        topic: str = "t",
        metadata: str | None = "",
        **claim: Any,
    ) -> ErrorCode:
        row = TxnOffsetCommitRequestPartition(0, offset, 3, metadata)
        topics = [TxnOffsetCommitRequestTopic(topic, partitions=[row])]
        request = TxnOffsetCommitRequest("x", group, PRODUCER_ID, 0, topics=topics, **claim)
        answer = await self.send(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def fetched(self, *, require_stable: bool) -> tuple[int, ErrorCode]:
        topics = [OffsetFetchRequestTopics("t", partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup("g", topics=topics)], require_stable=require_stable
        )
        answer = await self.send(ApiKey.OFFSET_FETCH, 9, request)
        row = answer.groups[0].topics[0].partitions[0]
        return row.committed_offset, ErrorCode(row.error_code)

    async def end(self, *, commits: bool) -> None:
        index = self.world.coordinator.shards.partition_of("g")
        await self.world.open[index].append_marker(PRODUCER_ID, commits=commits)
        await self.world.clock.settle()


@pytest.fixture
def client(world: Any) -> Client:
    return Client(world)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commits", [True, False])
async def test_an_offset_is_visible_after_the_commit_marker(
    client: Client, version: int, commits: bool
) -> None:
    assert await client.commit(10, version=version) is ErrorCode.NONE
    assert await client.fetched(require_stable=False) == (-1, ErrorCode.NONE)
    assert await client.fetched(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    await client.end(commits=commits)
    assert await client.fetched(require_stable=True) == (10 if commits else -1, ErrorCode.NONE)


async def test_the_coordinator_is_asked_once_per_transaction(client: Client) -> None:
    for offset in (1, 2):
        assert await client.commit(offset) is ErrorCode.NONE
    where = OFFSETS_TOPIC, client.world.coordinator.shards.partition_of("g")
    question = where, Claim("x", PRODUCER_ID, 0), TransactionalWrite.ADDING
    assert client.verifier.asked == [question]
    await client.end(commits=True)
    assert await client.commit(3, version=4) is ErrorCode.NONE
    assert client.verifier.asked == [question, (*question[:2], TransactionalWrite.VERIFIED)]
    assert await client.fetched(require_stable=False) == (2, ErrorCode.NONE)


@pytest.mark.parametrize(
    ("version", "error", "answer"),
    [
        (5, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (1, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (5, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_errors_of_the_transaction_coordinator(
    client: Client, version: int, error: ErrorCode, answer: ErrorCode
) -> None:
    client.verifier.error = error
    assert await client.commit(1, version=version) is answer
    assert await client.fetched(require_stable=True) == (-1, ErrorCode.NONE)


async def test_a_commit_whose_group_moves_during_verification_is_not_written(client: Client) -> None:
    world = client.world
    index = world.coordinator.shards.partition_of("g")
    client.verifier.before = lambda: world.close_partition(index)
    assert await client.commit(1) is ErrorCode.NOT_COORDINATOR
    assert world.logs[index] == []


async def test_partitions_are_refused_one_by_one(client: Client) -> None:
    assert await client.commit(1, topic="missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await client.commit(1, metadata="x" * 5_000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert await client.commit(1, metadata=None) is ErrorCode.NONE
    assert await client.commit(1, group="") is ErrorCode.INVALID_GROUP_ID


async def join(client: Client) -> Any:
    request = JoinGroupRequest(
        "g", 10_000, 60_000, "", "static", "consumer", [JoinGroupRequestProtocol("range", b"t")]
    )
    joining = asyncio.ensure_future(client.send(ApiKey.JOIN_GROUP, 9, request))
    await client.world.clock.pass_ms(5_000)
    return await joining


async def test_members_are_checked_as_in_kafka(client: Client) -> None:
    assert await client.commit(1, generation_id_or_member_epoch=1) is ErrorCode.ILLEGAL_GENERATION
    joined = await join(client)
    # The member has not synced: a commit outside of transactions would get REBALANCE_IN_PROGRESS.
    member = {"member_id": joined.member_id, "group_instance_id": "static"}
    generation = joined.generation_id
    assert await client.commit(1, generation_id_or_member_epoch=generation, **member) is ErrorCode.NONE
    claim = {**member, "generation_id_or_member_epoch": generation}
    stale = {**claim, "generation_id_or_member_epoch": generation + 1}
    assert await client.commit(1, **stale) is ErrorCode.ILLEGAL_GENERATION
    assert await client.commit(1, **{**claim, "member_id": "other"}) is ErrorCode.FENCED_INSTANCE_ID
    unknown = {**claim, "member_id": "other", "group_instance_id": None}
    assert await client.commit(1, **unknown) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await client.commit(1) is ErrorCode.NONE, "producers without the group's metadata (KIP-98)"


async def test_a_marker_is_refused_until_the_groups_are_loaded(client: Client) -> None:
    world = client.world
    await client.commit(4)
    index = world.coordinator.shards.partition_of("g")
    world.close_partition(index)
    partition = world.open_partition(index)
    with pytest.raises(RuntimeError, match="not loaded"):
        partition.append_marker(PRODUCER_ID, commits=True)
    await world.clock.settle()
    await client.end(commits=True)
    assert await client.fetched(require_stable=True) == (4, ErrorCode.NONE)


async def test_many_offsets_become_visible_in_turns_and_before_a_later_write(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of a transaction with 5,000 offsets must not hold the event loop."""
    count = 5_000
    assert await client.commit(10) is ErrorCode.NONE
    shard = client.world.coordinator.shards.of("g")
    group = shard.get("g")
    for index in range(1, count):
        shard._put_pending(group, PRODUCER_ID, ("t", index), CommittedOffset(offset=index))
    per_turn = [0]
    put = OffsetTable._put

    def counted(*args: Any) -> None:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        per_turn[-1] += 1
        put(*args)

    monkeypatch.setattr(OffsetTable, "_put", counted)
    index = client.world.coordinator.shards.partition_of("g")
    marker = client.world.open[index].append_marker(PRODUCER_ID, commits=True)
    later = asyncio.ensure_future(
        client.world.coordinator.commit_offsets(
            "g", MemberClaim("", None, -1), {("t", 0): CommittedOffset(offset=99)}
        )
    )
    await marker
    assert await later is ErrorCode.NONE

    assert len(group.offsets) == count
    assert group.offsets.get(("t", 0)).offset == 99
    assert group.offsets.get(("t", count - 1)).offset == count - 1
    assert not any(True for _ in group.offsets.pending())
    assert sum(per_turn) == count + 1
    assert max(per_turn) <= 1_000


async def test_the_marker_of_many_offsets_is_replayed_in_turns(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load must not hold the event loop for all offsets of a transaction."""
    world, parts, per_part = client.world, 6, 500
    world.topics["t"] = (UUID(int=9), parts * per_part)
    for part in range(parts):
        rows = [
            TxnOffsetCommitRequestPartition(index, index, 3, "")
            for index in range(part * per_part, (part + 1) * per_part)
        ]
        topics = [TxnOffsetCommitRequestTopic("t", partitions=rows)]
        answer = await client.send(
            ApiKey.TXN_OFFSET_COMMIT, 5, TxnOffsetCommitRequest("x", "g", PRODUCER_ID, 0, topics=topics)
        )
        assert {row.error_code for row in answer.topics[0].partitions} == {ErrorCode.NONE}
    await client.end(commits=True)
    index = world.coordinator.shards.partition_of("g")
    per_turn = [0]
    end = PendingOffsets.end

    def counted(pending: PendingOffsets[Any], *args: Any, **kwargs: Any) -> Any:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        ended = end(pending, *args, **kwargs)
        per_turn[-1] += len(ended)
        return ended

    world.close_partition(index)
    monkeypatch.setattr(PendingOffsets, "end", counted)
    world.open_partition(index)
    await world.clock.settle()
    while world.coordinator.shards.of("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0)
    assert len(world.coordinator.shards.of("g").get("g").offsets) == parts * per_part
    assert sum(per_turn) == parts * per_part
    assert max(per_turn) <= 2 * record_log.ENTRIES_PER_TURN


async def test_a_group_with_pending_offsets_does_not_expire(client: Client) -> None:
    world = client.world
    await client.commit(4)
    await world.clock.pass_ms(2 * world.settings.offsets_retention_ms)
    shard = world.coordinator.shards.of("g")
    await shard.removal.expire()
    await world.clock.settle()
    assert await client.fetched(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    await client.end(commits=False)
    await shard.removal.expire()
    await world.clock.settle()
    assert shard.get("g") is None


def test_a_transaction_that_commits_late_does_not_replace_a_newer_offset() -> None:
    pending: PendingOffsets[str] = PendingOffsets()
    older, newer = CommittedOffset(1), CommittedOffset(2, metadata="note")
    pending.add(7, "k", older)
    pending.add(8, "k", newer)
    assert pending.end(8, commits=True) == [("k", newer)]
    assert "k" in pending
    assert pending.end(7, commits=True) == []
    assert not pending
    assert pending.size_bytes == 0


def test_rows_restore_the_state() -> None:
    pending: PendingOffsets[str] = PendingOffsets()
    pending.add(7, "k", CommittedOffset(1))
    pending.outdate("k")
    pending.add(8, "k", CommittedOffset(2))
    restored: PendingOffsets[str] = PendingOffsets()
    for row in pending.rows():
        restored.add(*row)
    assert list(restored.rows()) == list(pending.rows())
    assert restored.size_bytes == pending.size_bytes
    assert restored.end(7, commits=True) == []
    assert restored.end(8, commits=True) == [("k", CommittedOffset(2))]


async def test_a_pending_offset_of_a_deleted_topic_is_removed_after_its_marker(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, the groups are not searched again: a transaction may stay open for a long time."""
    world = client.world
    world.topics["old"] = (UUID(int=7), 1)
    assert await client.commit(10, topic="old") is ErrorCode.NONE
    looked: list[str] = []
    topic_id = world.topic_id

    def counted(name: str) -> UUID | None:
        looked.append(name)
        found: UUID | None = topic_id(name)
        return found

    monkeypatch.setattr(world, "topic_id", counted)
    del world.topics["old"]
    world.coordinator.topics_deleted()
    await world.clock.settle()
    assert looked
    looked.clear()
    await world.clock.pass_ms(60_000)
    assert looked == []
    await client.end(commits=True)
    shard = world.coordinator.shards.of("g")
    assert shard.get("g") is None or shard.get("g").offsets.get(("old", 0)) is None
    assert looked


async def test_offsets_of_a_deleted_topic_that_become_visible_during_a_search_are_removed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search may find some of them pending, because a marker makes them visible in turns."""
    monkeypatch.setattr(group_shard, "_ENDED_PER_STEP", 1)
    world = client.world
    shards, topic_id = world.coordinator.shards, world.topic_id
    world.topics["old"] = (UUID(int=7), 1)
    names = (f"first-{number}" for number in range(1_000))
    first = next(name for name in names if shards.partition_of(name) == shards.partition_of("g"))
    others = {("t", number): CommittedOffset(offset=number) for number in range(750)}
    no_member = MemberClaim("", None, -1)
    assert await world.coordinator.commit_offsets(first, no_member, others) is ErrorCode.NONE
    assert await client.commit(10, topic="old") is ErrorCode.NONE
    shard = shards.of("g")
    ((_, _, committed),) = shard.get("g").offsets.pending()
    for number in range(1, 50):
        shard._put_pending(shard.get("g"), PRODUCER_ID, ("old", number), committed)
    markers: list[asyncio.Future[None]] = []

    def looked_up(name: str) -> UUID | None:
        if not markers:  # the search has begun with the first group
            marker = world.open[shards.partition_of("g")].append_marker(PRODUCER_ID, commits=True)
            markers.append(marker)
        found: UUID | None = topic_id(name)
        return found

    monkeypatch.setattr(world, "topic_id", looked_up)
    del world.topics["old"]
    world.coordinator.topics_deleted()
    await world.clock.settle()
    await world.clock.pass_ms(60_000)
    assert len(markers) == 1
    assert shard.get("g") is None or len(shard.get("g").offsets) == 0


async def test_pending_offsets_are_searched_for_deleted_topics_in_turns(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, count, per_turn = client.world, 5_000, [0]
    assert await client.commit(10) is ErrorCode.NONE
    shard, topic_id = world.coordinator.shards.of("g"), world.topic_id
    for index in range(1, count):
        shard._put_pending(shard.get("g"), PRODUCER_ID, ("t", index), CommittedOffset(offset=index))

    def counted(name: str) -> UUID | None:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        per_turn[-1] += 1
        found: UUID | None = topic_id(name)
        return found

    monkeypatch.setattr(world, "topic_id", counted)
    world.coordinator.topics_deleted()
    while sum(per_turn) < count:
        await asyncio.sleep(0)
    assert max(per_turn) <= 1_000


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_offsets_of_a_topic_that_is_deleted_while_the_coordinator_is_asked_are_removed(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_recreated: bool
) -> None:
    """The search for its offsets does not wait for the answer."""
    world = client.world
    world.topics["old"] = (UUID(int=7), 1)
    held: list[tuple[WaitingBatch[Verification], Verification | None]] = []
    monkeypatch.setattr(
        client.verifier, "submit", lambda _where, _claim, batch: held.append((batch, batch.take_proof()))
    )
    commit = asyncio.ensure_future(client.commit(10, topic="old"))
    await world.clock.settle()
    del world.topics["old"]
    world.coordinator.topics_deleted()
    await world.clock.pass_ms(5_000)
    if is_recreated:
        world.topics["old"] = (UUID(int=8), 1)
    ((batch, proof),) = held
    batch.settled(ErrorCode.NONE, proof)
    await world.clock.settle()
    assert await commit is ErrorCode.NONE
    await client.end(commits=True)
    await world.clock.pass_ms(60_000)
    shard = world.coordinator.shards.of("g")
    assert shard.get("g") is None or len(shard.get("g").offsets) == 0


@pytest.mark.parametrize("commits", [True, False])
async def test_a_visible_offset_of_a_deleted_topic_is_removed_after_the_transaction_that_replaces_it(
    client: Client, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """The groups are not searched again while the transaction is open."""
    world = client.world
    world.topics["old"] = (UUID(int=7), 1)
    no_member, of_old = MemberClaim("", None, -1), {("old", 0): CommittedOffset(5)}
    assert await world.coordinator.commit_offsets("g", no_member, of_old) is ErrorCode.NONE
    assert await client.commit(10, topic="old") is ErrorCode.NONE
    shard = world.coordinator.shards.of("g")
    searches: list[None] = []
    search = shard.removal.forget_deleted_topics

    async def counted(*args: Any) -> bool:
        searches.append(None)
        return bool(await search(*args))

    monkeypatch.setattr(shard.removal, "forget_deleted_topics", counted)
    del world.topics["old"]
    world.coordinator.topics_deleted()
    await world.clock.pass_ms(60_000)
    assert len(searches) == 1
    await client.end(commits=commits)
    await world.clock.pass_ms(60_000)
    assert shard.get("g") is None or shard.get("g").offsets.get(("old", 0)) is None
    assert len(searches) == 2
