"""Records about the controllers themselves: members of the quorum, and incarnations of the log."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import (
    EPOCH_BITS,
    INCARNATION_MAX,
    RECOVERIES_MAX,
    cluster_of,
    epoch_floor,
    next_incarnation,
    run_of,
)
from ponor_metadata.nouns.quorum import QUORUM, QuorumMemberRow
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_id

from libs.metadata.tests.metadata_kit import (
    GC_NODE,
    NODE_A,
    Log,
    claimed,
    destroyed,
    obj,
    prepared,
    record,
    registered,
)


def member(number: int, *, directory: int = 0, voter: bool = True) -> pb.QuorumMember:
    return pb.QuorumMember(
        node_id=number,
        directory_id=bytes([directory]) * 16,
        peer_address=f"host{number}:1",
        service_address=f"host{number}:2",
        voter=voter,
    )


def voters(*members: pb.QuorumMember) -> pb.Record:
    return record(voters_set=pb.VotersSet(members=members))


def raised(incarnation: int) -> pb.Record:
    return record(incarnation_raised=pb.IncarnationRaised(incarnation=incarnation))


def confirmed(incarnation: int) -> pb.Record:
    return record(incarnation_confirmed=pb.IncarnationConfirmed(incarnation=incarnation))


def test_each_record_replaces_the_whole_quorum() -> None:
    log = Log()
    log.commit(voters(member(1), member(2), member(3)))
    log.commit(voters(member(1), member(2, directory=1, voter=False), member(3)))
    assert [(row.node_id, row.directory_id[0], row.voter) for row in log.image[QUORUM]] == [
        (1, 0, True),
        (2, 1, False),
        (3, 0, True),
    ]
    assert log.image[QUORUM].get((NodeId(1), bytes(16))) == QuorumMemberRow(
        NodeId(1), bytes(16), "host1:1", "host1:2", voter=True
    )


def test_a_node_with_a_new_directory_is_another_member() -> None:
    log = Log()
    log.commit(voters(member(1), member(1, directory=1, voter=False)))
    assert [row.voter for row in log.image[QUORUM]] == [True, False]


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ([], "needs at least one voter"),
        ([member(1, voter=False)], "needs at least one voter"),
        ([member(2), member(1)], "not sorted"),
        ([member(1), member(1)], "occurs twice"),
        ([pb.QuorumMember(node_id=1, voter=True)], "16 bytes"),
    ],
)
def test_an_invalid_quorum_is_refused(members: list[pb.QuorumMember], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        Log().commit(voters(*members))


def test_a_raised_incarnation_moves_all_id_counters() -> None:
    log = Log()
    log.commit(prepared(obj(1), 5))
    before = {name: counters.next_value(log.image, name) for name in counters.ID_COUNTERS}
    order = counters.next_value(log.image, counters.COMMIT_ORDER)
    log.commit(raised(1))
    after = {name: counters.next_value(log.image, name) for name in counters.ID_COUNTERS}
    assert all(after[name] >= value + counters.INCARNATION_JUMP for name, value in before.items())
    assert counters.next_value(log.image, counters.COMMIT_ORDER) == order
    cluster = cluster_of(log.image)
    assert cluster is not None
    assert (cluster.incarnation, cluster.incarnation_unconfirmed) == (1, True)


@pytest.mark.parametrize(
    ("first", "second"), [((1,), (2,)), ((1, 1), (3,)), ((1, 2), (2, 1)), ((63,), (1, 1))]
)
def test_recoveries_of_one_log_on_different_controllers_give_different_ids_and_epochs(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    begins: list[set[int]] = []
    for controllers in (first, second):  # two continuations of one log
        log = Log()
        for controller in controllers:
            cluster = cluster_of(log.image)
            assert cluster is not None
            log.commit(raised(next_incarnation(cluster.incarnation, controller, drawn=0)))
        ids = {counters.next_value(log.image, name) for name in counters.ID_COUNTERS}
        begins.append(ids | {epoch_floor(log.image)})
    assert all(abs(one - other) >= 1 << EPOCH_BITS for one in begins[0] for other in begins[1])


def test_recoveries_of_copies_of_one_directory_give_different_incarnations() -> None:
    first, second = (next_incarnation(0, 1, drawn) for drawn in (7, 8))
    assert first != second
    assert min(next_incarnation(each, 1, drawn=0) for each in (first, second)) > max(first, second)


def test_the_last_recovery_uses_the_last_run() -> None:
    incarnation = 0
    for _ in range(RECOVERIES_MAX):
        incarnation = next_incarnation(incarnation, 63, (1 << EPOCH_BITS) - 1)
    assert incarnation == INCARNATION_MAX
    assert compose_id(ClusterOrdinal(1), (run_of(incarnation) + 1 << counters.RUN_BITS) - 1)
    assert next_incarnation(incarnation, 1, 0) > INCARNATION_MAX


def test_an_epoch_of_an_earlier_incarnation_is_refused() -> None:
    log = Log()
    log.commit(raised(1))
    with pytest.raises(AssertionError, match="epoch 2 is of an earlier incarnation"):
        log.commit(registered(NODE_A, 2))
    log.commit(registered(NODE_A, epoch_floor(log.image)))


def test_claims_are_refused_until_the_incarnation_is_confirmed() -> None:
    log = Log(nodes=(NODE_A, GC_NODE))
    log.commit(prepared(obj(1), 1))
    log.commit(destroyed(obj(1), at_ms=2))
    log.commit(raised(3))
    with pytest.raises(AssertionError, match="waits for confirmation"):
        log.commit(claimed(obj(1)))


def test_an_incarnation_is_confirmed_once_by_its_number() -> None:
    log = Log(nodes=(NODE_A, GC_NODE))
    log.commit(prepared(obj(1), 1), destroyed(obj(1), at_ms=2))
    log.commit(raised(2))
    log.commit(confirmed(2))
    log.commit(claimed(obj(1)))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (confirmed(2), "confirmed before"),
        (confirmed(1), "the incarnation is 2"),
        (raised(2), "is not above incarnation"),
        (raised(1), "is not above incarnation"),
    ],
)
def test_incarnations_only_rise(wrong: pb.Record, fault: str) -> None:
    log = Log()
    log.commit(raised(2), confirmed(2))
    with pytest.raises(AssertionError, match=fault):
        log.commit(wrong)
