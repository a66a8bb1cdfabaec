"""Write-ahead logs in the store: who may commit, close and trim what went through one, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.nodes.registration import register_node
from ponor_controller.kernel.operation import Caller
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.wals import WALS, WALS_OF, WALS_RECOVERED_BY, WalRow
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeEpoch, NodeId

from services.controller.tests.ledger import Ledger, UploadRange, upload_body, wal_name

OBJECT = WalKind.OBJECT


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def broker(ledger: Ledger) -> Caller:
    return with_log(ledger, 0)


@pytest.fixture
def other(ledger: Ledger) -> Caller:
    return with_log(ledger, 1)


@pytest.fixture
def stream(ledger: Ledger, broker: Caller) -> int:
    (stream_id,) = ledger.create_streams(broker)
    ledger.open(broker, stream_id, 1)
    return stream_id


def with_log(ledger: Ledger, number: int) -> Caller:
    """A broker whose log is open."""
    caller = ledger.register(number, wal=OBJECT)
    ledger.do(caller, open_wal=wire.OpenWal())
    return caller


def log_of(ledger: Ledger, owner: Caller) -> WalRow | None:
    return ledger.image[WALS].get((owner.node_id, owner.node_epoch))


def commit(
    ledger: Ledger,
    caller: Caller,
    set_ranges: Sequence[UploadRange] = (),
    *,
    recovered: wire.WalName | None = None,
    trim: int = 0,
) -> wire.CommitUpload:
    body = upload_body(ledger.prepare(caller) if set_ranges else [], set_ranges)
    body.trim_sequence = trim
    if recovered is not None:
        body.recovered.CopyFrom(recovered)
    return body


def closing(
    stream_id: int, end_offset: int, epoch: int = 1, recovered: wire.WalName | None = None
) -> wire.CloseStreams:
    state = wire.StreamState(stream_id=stream_id, stream_epoch=epoch, end_offset=end_offset)
    return wire.CloseStreams(streams=[state], recovered=recovered)


# The owner


def test_a_log_is_opened_once_per_process_and_asking_again_is_no_harm(ledger: Ledger, broker: Caller) -> None:
    assert log_of(ledger, broker) is not None
    assert ledger.decide(broker, open_wal=wire.OpenWal()) == []


def test_without_an_open_log_nothing_is_opened_so_that_nothing_is_acknowledged_that_nobody_would_look_for(
    ledger: Ledger, broker: Caller, stream: int
) -> None:
    late = ledger.register(1, wal=OBJECT)
    (unopened,) = ledger.create_streams(late)
    opening = wire.OpenStreams(streams=[wire.OpenStream(stream_id=unopened, stream_epoch=1)])
    assert ledger.refusal(late, open_streams=opening) == "WAL_NOT_HELD"
    body = commit(ledger, late, [(stream, 1, 0, 5)])
    assert ledger.refusal(late, commit_upload=body) == "WAL_NOT_HELD"


def test_the_trim_point_moves_with_the_commit_and_never_back(
    ledger: Ledger, broker: Caller, stream: int
) -> None:
    body = commit(ledger, broker, [(stream, 1, 0, 5)], trim=7)
    kinds = [each.WhichOneof("kind") for each in ledger.decide(broker, commit_upload=body)]
    assert kinds == ["stream_set_object_committed", "wal_trimmed"], "in one batch"
    ledger.do(broker, commit_upload=body)
    for lower in (7, 6, 1):
        ledger.do(broker, commit_upload=commit(ledger, broker, trim=lower))
    row = log_of(ledger, broker)
    assert row is not None
    assert row.trim_sequence == 7


def test_slots_of_which_nothing_is_needed_are_trimmed_without_an_object(
    ledger: Ledger, broker: Caller
) -> None:
    ledger.do(broker, commit_upload=wire.CommitUpload(trim_sequence=3))
    row = log_of(ledger, broker)
    assert row is not None
    assert row.trim_sequence == 3
    assert ledger.refusal(broker, commit_upload=wire.CommitUpload()) == "INVALID_REQUEST"


def test_an_owner_closes_its_log_once_it_holds_nothing_open(
    ledger: Ledger, broker: Caller, stream: int
) -> None:
    close = wire.CloseWal(wal=wal_name(broker), end_sequence=0)
    assert ledger.refusal(broker, close_wal=close) == "STREAM_NOT_CLOSED"
    ledger.do(broker, close_streams=closing(stream, 0))
    ledger.do(broker, commit_upload=wire.CommitUpload(trim_sequence=4))
    assert ledger.refusal(broker, close_wal=close) == "INVALID_REQUEST", "it ends below its trim point"
    close.end_sequence = 4
    ledger.do(broker, close_wal=close)
    assert log_of(ledger, broker) is None
    assert ledger.decide(broker, close_wal=close) == []


def test_a_log_in_a_file_is_none_of_this(ledger: Ledger) -> None:
    broker = ledger.register(3)
    assert ledger.refusal(broker, open_wal=wire.OpenWal()) == "INVALID_REQUEST"
    (stream_id,) = ledger.create_streams(broker)
    ledger.open(broker, stream_id, 1)
    body = commit(ledger, broker, [(stream_id, 1, 0, 5)], trim=1)
    assert ledger.refusal(broker, commit_upload=body) == "INVALID_REQUEST"


def test_an_epoch_that_holds_is_confirmed_without_a_record(ledger: Ledger, broker: Caller) -> None:
    assert ledger.decide(broker, verify_epoch=wire.VerifyEpoch()) == []


# The recoverer


def test_a_recoverer_commits_closes_and_closes_the_log_in_the_owners_name(
    ledger: Ledger, broker: Caller, other: Caller, stream: int
) -> None:
    ledger.do(broker, commit_upload=commit(ledger, broker, [(stream, 1, 0, 5)], trim=2))
    ledger.fence(broker)
    log = ledger.assign(broker, other)
    body = commit(ledger, other, [(stream, 1, 5, 9)], recovered=log, trim=6)
    ledger.do(other, commit_upload=body)
    (piece,) = ledger.set_object(body.stream_set_object.object_id).ranges.decoded
    assert (piece.start_offset, piece.end_offset) == (5, 9)
    owner_of = ledger.set_object(body.stream_set_object.object_id).node_id
    assert owner_of == broker.node_id, "readers look among the objects of the node it went through"
    close = wire.CloseWal(wal=log, end_sequence=6)
    assert ledger.refusal(other, close_wal=close) == "STREAM_NOT_CLOSED"
    ledger.do(other, close_streams=closing(stream, 9, recovered=log))
    assert ledger.decide(other, close_streams=closing(stream, 9, recovered=log)) == [], "a repeat"
    ledger.do(other, close_wal=close)
    assert ledger.decide(other, close_wal=close) == [], "a repeat"
    assert ledger.refusal(other, close_streams=closing(stream, 9, recovered=log)) == "WAL_NOT_HELD"
    ledger.open(other, stream, 2)


def test_what_is_committed_already_is_not_committed_again(
    ledger: Ledger, broker: Caller, other: Caller, stream: int
) -> None:
    ledger.do(broker, commit_upload=commit(ledger, broker, [(stream, 1, 0, 5)]))
    ledger.fence(broker)
    log = ledger.assign(broker, other)
    for start, end in ((0, 5), (3, 9), (6, 9)):
        body = commit(ledger, other, [(stream, 1, start, end)], recovered=log)
        assert ledger.refusal(other, commit_upload=body) == "OFFSET_MISMATCH", (start, end)
    body = commit(ledger, other, [(stream, 2, 5, 9)], recovered=log)
    assert ledger.refusal(other, commit_upload=body) == "STREAM_FENCED", "another stream epoch"
    assert ledger.refusal(other, close_streams=closing(stream, 4, recovered=log)) == "OFFSET_MISMATCH"


def test_nobody_else_touches_the_streams_of_a_log_that_is_recovered(
    ledger: Ledger, broker: Caller, other: Caller, stream: int
) -> None:
    third = with_log(ledger, 2)
    ledger.fence(broker)
    name = wal_name(broker)

    def refusals(caller: Caller, recovered: wire.WalName | None) -> list[str]:
        body = commit(ledger, caller, [(stream, 1, 0, 5)], recovered=recovered)
        return [
            ledger.refusal(caller, commit_upload=body),
            ledger.refusal(caller, close_streams=closing(stream, 0, recovered=recovered)),
        ]

    assert refusals(third, name) == ["WAL_NOT_HELD"] * 2, "nobody is to recover it yet"
    ledger.assign(broker, other)
    assert refusals(third, name) == ["WAL_NOT_HELD"] * 2
    assert refusals(third, None) == ["STREAM_FENCED"] * 2
    assert refusals(other, None) == ["STREAM_FENCED"] * 2, "not as its own"
    assert ledger.refusal(third, close_wal=wire.CloseWal(wal=name)) == "WAL_NOT_HELD"
    ledger.assign(broker, third)
    assert refusals(other, name) == ["WAL_NOT_HELD"] * 2, "its turn is over"


def test_a_recoverer_leaves_streams_of_other_logs_alone(
    ledger: Ledger, broker: Caller, other: Caller, stream: int
) -> None:
    third = with_log(ledger, 2)
    (foreign,) = ledger.create_streams(third)
    ledger.open(third, foreign, 1)
    ledger.fence(broker)
    log = ledger.assign(broker, other)
    body = commit(ledger, other, [(stream, 1, 0, 5), (foreign, 1, 0, 5)], recovered=log)
    assert ledger.refusal(other, commit_upload=body) == "STREAM_FENCED"
    assert ledger.refusal(other, close_streams=closing(foreign, 0, recovered=log)) == "STREAM_FENCED"


def test_a_stream_whose_topic_was_deleted_meanwhile_keeps_no_log_open(
    ledger: Ledger, broker: Caller, other: Caller, stream: int
) -> None:
    ledger.do(broker, delete_streams=wire.DeleteStreams(stream_ids=[stream]))
    ledger.fence(broker)
    log = ledger.assign(broker, other)
    body = commit(ledger, other, [(stream, 1, 0, 5)], recovered=log, trim=1)
    ledger.do(other, commit_upload=body)
    assert ledger.decide(other, close_streams=closing(stream, 5, recovered=log)) == []
    ledger.do(other, close_wal=wire.CloseWal(wal=log, end_sequence=1))


# Registration


def test_the_next_process_recovers_the_log_of_the_one_before_and_has_its_own(
    ledger: Ledger, broker: Caller, stream: int
) -> None:
    again = ledger.register(0, wal=OBJECT)
    (row,) = ledger.image[WALS].find(WALS_RECOVERED_BY, again.node_id)
    assert (row.wal_epoch, row.recoverer_epoch, row.token) == (broker.node_epoch, again.node_epoch, 1)
    ledger.do(again, open_wal=wire.OpenWal())
    body = commit(ledger, again, [(stream, 1, 0, 5)])
    assert ledger.refusal(again, commit_upload=body) == "STREAM_FENCED", "it lies in the older log"
    assert ledger.refusal(again, close_streams=closing(stream, 0)) == "STREAM_FENCED"
    body.recovered.CopyFrom(wal_name(broker))
    ledger.do(again, commit_upload=body)
    ledger.do(again, close_streams=closing(stream, 5, recovered=wal_name(broker)))
    ledger.do(again, close_wal=wire.CloseWal(wal=wal_name(broker), end_sequence=3))
    assert [row.wal_epoch for row in ledger.image[WALS].find(WALS_OF, again.node_id)] == [again.node_epoch]


def test_what_another_broker_recovers_already_stays_with_it_as_long_as_it_has_its_rights(
    ledger: Ledger, broker: Caller, other: Caller, stream: int
) -> None:
    ledger.fence(broker)
    ledger.assign(broker, other)
    again = ledger.register(0, wal=OBJECT)
    assert not ledger.image[WALS].find(WALS_RECOVERED_BY, again.node_id)
    ledger.fence(other)
    once_more = ledger.register(0, wal=OBJECT)
    (row,) = ledger.image[WALS].find(WALS_RECOVERED_BY, once_more.node_id)
    assert (row.recoverer_epoch, row.token) == (once_more.node_epoch, 2)


def test_a_node_changes_the_place_of_its_log_only_when_nothing_is_left_in_the_old_one(
    ledger: Ledger, broker: Caller, stream: int
) -> None:
    with pytest.raises(OperationError, match="start it again with that log and stop it in order"):
        ledger.register(0, wal=WalKind.FILE)
    ledger.do(broker, close_streams=closing(stream, 0))
    with pytest.raises(OperationError, match="in the object store"):
        ledger.register(0, wal=WalKind.FILE)
    ledger.do(broker, close_wal=wire.CloseWal(wal=wal_name(broker)))
    with_file = ledger.register(0, wal=WalKind.FILE)
    ledger.open(with_file, stream, 2)
    with pytest.raises(OperationError, match="in a file"):
        ledger.register(0, wal=OBJECT)


def test_a_broker_with_its_log_in_a_file_is_recorded_without_a_kind(ledger: Ledger) -> None:
    record = register_node(hello(0), ledger.view, 1).records[0]
    assert record.node_registered.wal == records_pb2.WAL_KIND_UNSPECIFIED


def test_a_kind_of_log_that_is_not_known_is_refused(ledger: Ledger) -> None:
    with pytest.raises(OperationError, match="upgrade the controller") as refused:
        register_node(hello(9), ledger.view, 1)
    assert refused.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST


def hello(wal: int) -> wire.Hello:
    return wire.Hello(
        node_id=NodeId(7 << 16),
        role=records_pb2.NODE_ROLE_BROKER,
        incarnation=bytes(16),
        kafka_host="h",
        kafka_port=1,
        wal=wal,  # type: ignore[arg-type]
    )


def test_the_name_of_a_log_that_never_was_is_closed_already(ledger: Ledger, broker: Caller) -> None:
    never = wire.WalName(node_id=broker.node_id, wal_epoch=NodeEpoch(99))
    assert ledger.decide(broker, close_wal=wire.CloseWal(wal=never)) == []
    body = wire.CommitUpload(recovered=never, trim_sequence=1)
    assert ledger.refusal(broker, commit_upload=body) == "WAL_NOT_HELD"
