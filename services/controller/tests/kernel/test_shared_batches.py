"""Operations that share a batch give the same results at a lower cost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.kernel.executor import SLICE_NS, SLICES_MAX, execute_operations
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.operation import PendingOperation
from ponor_controller.kernel.proposer import GROUP_BYTES_MAX, GROUP_ROWS_MAX, UNDER_WAY_MAX
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.counters import COUNTERS
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import FLOOR_STEP_MAX, OPERATIONS
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_rpc.errors import OperationError

from services.controller.tests.kernel.test_proposals import HandClock, Leader
from services.controller.tests.ledger import Ledger


def _gathering(ledger: Ledger) -> Leader:
    leader = Leader(ledger)
    leader.gathers = True
    return leader


def _put(key: str, value: bytes = b"v") -> wire.PutKey:
    return wire.PutKey(key=key, value=value)


def _replica(leader: Leader, base: MetadataImage) -> MetadataImage:
    """Apply the leader's batches as a follower does."""
    follower = snapshot.decode(snapshot.encode(base))
    for entry in leader.consensus.entries:
        follower.apply_committed(entry.data)
    return follower


def test_operations_of_one_slice_share_one_index_and_are_answered_together() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    for request_id in (1, 2, 3):
        leader.execute(broker, request_id, put_key=_put(f"k{request_id}"))
    assert leader.consensus.entries == []
    assert "k2" in ledger.view[KEYS], "the next operation is decided upon it"
    leader.proposer.propose_open()
    leader.proposer.propose_open()  # nothing is left to propose
    (entry,) = leader.consensus.entries
    assert entry.data == entry.batch.SerializeToString(deterministic=True), (
        "joined from its records, the bytes are protobuf's own"
    )
    follower = _replica(leader, ledger.image)
    assert leader.answers == []
    leader.commit()
    assert [(each.request_id, each.commit_index) for each in leader.answers] == [
        (request_id, ledger.image.index) for request_id in (1, 2, 3)
    ]
    assert snapshot.encode(follower) == snapshot.encode(ledger.image)


def test_a_refusal_and_a_repeat_in_the_middle_change_nothing() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    allocate = wire.AllocateProducerIds(count=10)
    leader.execute(broker, 1, allocate_producer_ids=allocate)
    leader.execute(broker, 2, delete_topic=wire.DeleteTopic(topic_id=bytes(16)))
    leader.execute(broker, 1, allocate_producer_ids=allocate)
    leader.execute(broker, 3, allocate_producer_ids=allocate)
    leader.proposer.propose_open()
    (entry,) = leader.consensus.entries
    assert [record.WhichOneof("kind") for record in entry.batch.records] == [
        "producer_ids_allocated",
        "operation_completed",
    ] * 2
    leader.commit()
    first, refused, again, second = leader.answers
    assert refused.error.code == error_pb2.ERROR_CODE_TOPIC_NOT_FOUND
    assert again == first
    assert second.producer_ids_granted.first_producer_id == first.producer_ids_granted.first_producer_id + 10


def test_a_group_is_limited_by_bytes_and_a_wide_operation_is_alone() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    for request_id in range(1, 101):
        leader.execute(broker, request_id, put_key=_put(f"k{request_id}", b"v" * 4_000))
    leader.proposer.propose_open()
    sizes = [len(entry.data) for entry in leader.consensus.entries]
    assert len(sizes) > 3
    assert max(sizes) <= GROUP_BYTES_MAX
    leader.commit()
    assert len(leader.answers) == 100


@pytest.mark.parametrize("partitions", [7, 200, 1_000])
def test_a_group_is_limited_by_the_rows_that_it_changes(partitions: int) -> None:
    """Before, one batch deleted 40 topics of 1,000 partitions, in one turn of 180 ms in each process."""
    ledger = Ledger()
    broker = ledger.register(0)
    topics = []
    for number in range(8):
        body = wire.CreateTopic(name=f"t{number}", partitions=partitions, replication_factor=-1)
        topics.append(ledger.do(broker, create_topic=body).topic_held.topic_id)
    leader = _gathering(ledger)
    for request_id, topic_id in enumerate(topics, 1):
        leader.execute(broker, request_id, delete_topic=wire.DeleteTopic(topic_id=topic_id))
    leader.proposer.propose_open()
    deleted = [
        sum(record.HasField("topic_deleted") for record in entry.batch.records)
        for entry in leader.consensus.entries
    ]
    assert sum(deleted) == len(topics)
    assert max(deleted) == min(len(topics), max(1, GROUP_ROWS_MAX // partitions))
    leader.commit()
    assert len(leader.answers) == len(topics)
    assert not len(ledger.image[PARTITIONS])


def test_an_answer_too_large_for_a_frame_is_refused_and_changes_nothing() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    for number in range(900):
        ledger.do(broker, put_key=_put(f"k{number}", b"v" * 4_096))
    leader = _gathering(ledger)
    puts = [_put(f"k{number}") for number in range(900)]
    leader.execute(broker, 1, put_keys=wire.PutKeys(puts=[*puts, _put("new")]))
    leader.execute(broker, 2, put_keys=wire.PutKeys(puts=puts[:300]))
    leader.proposer.propose_open()
    assert leader.consensus.entries == [], "refused, and nothing to put"
    refused, answered = leader.answers
    assert refused.error.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    assert "request less" in refused.error.message
    assert len(answered.keys_held.held) == 300


def test_a_concurrent_proposal_follows_the_batch() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    leader.execute(broker, 1, put_key=_put("a"))
    assert leader.consensus.entries == []
    leader.proposer.propose([records_pb2.Record(key_put=records_pb2.KeyPut(key="b", value=b"v"))])
    assert [entry.index for entry in leader.consensus.entries] == [
        ledger.image.index + 1,
        ledger.image.index + 2,
    ]


def test_the_end_of_leadership_drops_a_gathering_batch() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    before = snapshot.encode(ledger.image)
    leader.execute(broker, 1, put_key=_put("a"))
    refusal = OperationError(error_pb2.ERROR_CODE_NOT_LEADER, "another leads")
    leader.proposer.end(refusal)
    (answer,) = leader.answers
    assert answer.error.code == error_pb2.ERROR_CODE_NOT_LEADER
    assert "a" not in ledger.view[KEYS]
    assert snapshot.encode(ledger.image) == before
    leader.proposer.propose_open()
    assert leader.consensus.entries == []


def test_a_gathering_batch_continues_after_a_failed_transfer() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    leader.execute(broker, 1, put_key=_put("a"))
    leader.consensus.accepts_proposals = False
    leader.proposer.propose_open()
    assert leader.proposer.has_open_batch
    leader.execute(broker, 2, put_key=_put("b"))
    (refused,) = leader.answers
    assert (refused.request_id, refused.error.code) == (2, error_pb2.ERROR_CODE_NOT_LEADER)
    with pytest.raises(OperationError, match="is transferring its leadership"):
        leader.proposer.propose([records_pb2.Record(key_put=records_pb2.KeyPut(key="c", value=b"v"))])
    assert leader.consensus.entries == []
    leader.consensus.accepts_proposals = True
    leader.proposer.propose_open()
    assert len(leader.consensus.entries) == 1
    leader.commit()
    assert leader.answers[-1].commit_index == ledger.image.index
    assert "a" in ledger.image[KEYS]


def test_a_batch_that_waits_for_a_transfer_stays_within_its_limit() -> None:
    leader = _gathering(Ledger())
    record = records_pb2.Record(key_put=records_pb2.KeyPut(key="a", value=bytes(GROUP_BYTES_MAX // 2)))
    leader.proposer.add([record])
    leader.consensus.accepts_proposals = False
    with pytest.raises(OperationError, match="is transferring its leadership"):
        leader.proposer.add([record])
    leader.consensus.accepts_proposals = True
    leader.proposer.propose_open()
    (entry,) = leader.consensus.entries
    assert len(entry.batch.records) == 1


def test_commits_and_other_proposals_do_not_disturb_a_gathering_batch() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    leader.execute(broker, 1, put_key=_put("a"))
    leader.proposer.propose_open()
    leader.execute(broker, 2, put_key=_put("b"))
    leader.commit()
    assert [answer.request_id for answer in leader.answers] == [1]
    assert "b" in ledger.view[KEYS]
    assert "b" not in ledger.image[KEYS]
    leader.proposer.propose([records_pb2.Record(key_put=records_pb2.KeyPut(key="c", value=b"v"))])
    leader.execute(broker, 3, put_key=_put("d"))
    leader.proposer.propose_open()
    leader.commit()
    assert [answer.request_id for answer in leader.answers] == [1, 2, 3]
    assert [row.key for row in ledger.image[KEYS]] == ["a", "b", "c", "d"]
    assert ledger.view.touched_rows == 0


class _SlowClock(HandClock):
    """Time passes with every read, and a sleep yields to the event loop."""

    def __init__(self, ns_per_look: int) -> None:
        super().__init__()
        self._ns_per_look = ns_per_look
        self.sleeps = 0

    def monotonic_ns(self) -> int:
        self.ns += self._ns_per_look
        return self.ns

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await asyncio.sleep(0)


async def test_a_batch_gathers_over_a_few_slices_and_yields_between_them() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    lanes, clock = Lanes(), _SlowClock(SLICE_NS // 2)
    for request_id in range(1, 25):
        operation = wire.Operation(request_id=request_id, put_key=_put(f"k{request_id}"))
        lanes.put(PendingOperation(broker, operation, 0, lambda _: None, "put_key"))
    driving = asyncio.create_task(execute_operations(lanes, leader.executor, leader.proposer, clock))
    while len(lanes):
        await asyncio.sleep(0)
    driving.cancel()
    await asyncio.wait((driving,))
    gathered = [len(entry.batch.records) // 2 for entry in leader.consensus.entries]
    assert gathered == [3 * SLICES_MAX] * 2, "the third operation detects the end of the slice"
    assert clock.sleeps == 2 * SLICES_MAX


async def test_a_batch_is_proposed_as_soon_as_nothing_waits() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    lanes = Lanes()
    driving = asyncio.create_task(execute_operations(lanes, leader.executor, leader.proposer, _SlowClock(0)))
    for request_id in (1, 2):
        operation = wire.Operation(request_id=request_id, put_key=_put(f"k{request_id}"))
        lanes.put(PendingOperation(broker, operation, 0, lambda _: None, "put_key"))
        while leader.consensus.settled < request_id:
            await asyncio.sleep(0)
    driving.cancel()
    await asyncio.wait((driving,))
    assert [len(entry.batch.records) // 2 for entry in leader.consensus.entries] == [1, 1]


def test_with_enough_batches_in_flight_the_next_one_waits_for_a_commit() -> None:
    ledger = Ledger()
    broker = ledger.register(0)
    leader = _gathering(ledger)
    for request_id in range(1, UNDER_WAY_MAX + 1):
        assert leader.proposer.has_turn
        leader.execute(broker, request_id, put_key=_put(f"k{request_id}"))
        leader.proposer.propose_open()
    assert not leader.proposer.has_turn
    assert leader.proposer.has_room, "others than operations need not wait"
    leader.commit()
    assert leader.proposer.has_turn


def test_a_floor_that_jumps_drops_the_same_results_as_a_rising_one() -> None:
    outcomes = []
    for floors in ([3, FLOOR_STEP_MAX * 2], [2, 3, 4, FLOOR_STEP_MAX, FLOOR_STEP_MAX * 2]):
        ledger = Ledger()
        broker = ledger.register(0)
        leader = _gathering(ledger)
        for request_id in (1, 2, 3, FLOOR_STEP_MAX - 1):
            leader.execute(broker, request_id, put_key=_put(f"k{request_id}"))
        for number, floor in enumerate(floors):
            leader.execute(broker, FLOOR_STEP_MAX * 3 + number, floor, put_key=_put(f"f{floor}"))
        kept = [row.request_id for row in ledger.view[OPERATIONS]]
        leader.proposer.propose_open()
        leader.commit()
        assert [row.request_id for row in ledger.image[OPERATIONS]] == kept
        outcomes.append([request_id for request_id in kept if request_id < FLOOR_STEP_MAX * 3])
    assert outcomes == [[], []]


_STEPS = st.lists(st.sampled_from(["put", "again", "ids", "topic", "refused", "seal", "commit"]), max_size=40)


@given(_STEPS)
def test_groups_give_the_same_results_as_single_batches(steps: list[str]) -> None:
    """The same operations in single batches and in groups: the same answers except for their
    indices, and the same rows.
    """
    outcomes = []
    for gathers in (False, True):
        ledger = Ledger()
        broker = ledger.register(0)
        leader = Leader(ledger)
        leader.gathers = gathers
        start = snapshot.decode(snapshot.encode(ledger.image))
        data: list[bytes] = []
        for number, step in enumerate(steps, 1):
            match step:
                case "put":
                    leader.execute(broker, number, put_key=_put(f"k{number % 7}"))
                case "again":
                    leader.execute(broker, number, put_key=_put("k1", b"other"))
                case "ids":
                    leader.execute(broker, number, allocate_producer_ids=wire.AllocateProducerIds(count=3))
                case "topic":
                    create = wire.CreateTopic(name=f"t{number % 3}", partitions=2, replication_factor=-1)
                    leader.execute(broker, number, create_topic=create)
                case "refused":
                    leader.execute(broker, number, delete_topic=wire.DeleteTopic(topic_id=bytes(16)))
                case "seal":
                    leader.proposer.propose_open()
                case _:
                    leader.proposer.propose_open()
                    data += [entry.data for entry in leader.consensus.entries]
                    leader.commit()
        leader.proposer.propose_open()
        data += [entry.data for entry in leader.consensus.entries]
        leader.commit()
        for encoded in data:
            start.apply_committed(encoded)
        assert snapshot.encode(start) == snapshot.encode(ledger.image), "a follower sees the same"
        for answer in leader.answers:
            answer.commit_index = 0
        answers = sorted(leader.answers, key=lambda each: each.request_id)
        outcomes.append(
            (answers, list(ledger.image[KEYS]), list(ledger.image[COUNTERS]), list(ledger.image[PARTITIONS]))
        )
    assert outcomes[0] == outcomes[1]
