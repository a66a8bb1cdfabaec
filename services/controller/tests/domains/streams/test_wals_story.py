"""Object WALs: which process may commit, close and trim their data, and until when."""

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
    """A broker with an open log."""
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


def test_a_log_is_opened_once_per_process_and_repeats_succeed(ledger: Ledger, broker: Caller) -> None:
    assert log_of(ledger, broker) is not None
    assert ledger.decide(broker, open_wal=wire.OpenWal()) == []


def test_streams_are_opened_only_with_an_open_log(ledger: Ledger, broker: Caller, stream: int) -> None:
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


def test_unneeded_slots_are_trimmed_without_an_object(ledger: Ledger, broker: Caller) -> None:
    ledger.do(broker, commit_upload=wire.CommitUpload(trim_sequence=3))
    row = log_of(ledger, broker)
    assert row is not None
    assert row.trim_sequence == 3
    assert ledger.refusal(broker, commit_upload=wire.CommitUpload()) == "INVALID_REQUEST"


def test_an_owner_closes_its_log_after_all_its_streams(ledger: Ledger, broker: Caller, stream: int) -> None:
    close = wire.CloseWal(wal=wal_name(broker), end_sequence=0)
    assert ledger.refusal(broker, close_wal=close) == "STREAM_NOT_CLOSED"
    ledger.do(broker, close_streams=closing(stream, 0))
    ledger.do(broker, commit_upload=wire.CommitUpload(trim_sequence=4))
    assert ledger.refusal(broker, close_wal=close) == "INVALID_REQUEST", "it ends below its trim point"
    close.end_sequence = 4
    ledger.do(broker, close_wal=close)
    assert log_of(ledger, broker) is None
    assert ledger.decide(broker, close_wal=close) == []


def test_brokers_with_a_file_wal_have_no_log_row(ledger: Ledger) -> None:
    broker = ledger.register(3)
    assert ledger.refusal(broker, open_wal=wire.OpenWal()) == "INVALID_REQUEST"
    (stream_id,) = ledger.create_streams(broker)
    ledger.open(broker, stream_id, 1)
    body = commit(ledger, broker, [(stream_id, 1, 0, 5)], trim=1)
    assert ledger.refusal(broker, commit_upload=body) == "INVALID_REQUEST"


def test_a_current_epoch_is_confirmed_without_a_record(ledger: Ledger, broker: Caller) -> None:
    assert ledger.decide(broker, verify_epoch=wire.VerifyEpoch()) == []


# The recoverer


def test_a_recoverer_commits_and_closes_for_the_owner(
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
    assert owner_of == broker.node_id, "readers search the objects of the node that wrote it"
    close = wire.CloseWal(wal=log, end_sequence=6)
    assert ledger.refusal(other, close_wal=close) == "STREAM_NOT_CLOSED"
    ledger.do(other, close_streams=closing(stream, 9, recovered=log))
    assert ledger.decide(other, close_streams=closing(stream, 9, recovered=log)) == [], "a repeat"
    ledger.do(other, close_wal=close)
    assert ledger.decide(other, close_wal=close) == [], "a repeat"
    assert ledger.refusal(other, close_streams=closing(stream, 9, recovered=log)) == "WAL_NOT_HELD"
    ledger.open(other, stream, 2)


def test_committed_data_is_not_committed_again(
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


def test_other_brokers_cannot_change_streams_of_a_log_being_recovered(
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

    assert refusals(third, name) == ["WAL_NOT_HELD"] * 2, "it is not assigned yet"
    ledger.assign(broker, other)
    assert refusals(third, name) == ["WAL_NOT_HELD"] * 2
    assert refusals(third, None) == ["STREAM_FENCED"] * 2
    assert refusals(other, None) == ["STREAM_FENCED"] * 2, "not as its own"
    assert ledger.refusal(third, close_wal=wire.CloseWal(wal=name)) == "WAL_NOT_HELD"
    ledger.assign(broker, third)
    assert refusals(other, name) == ["WAL_NOT_HELD"] * 2, "its assignment ended"


def test_a_recoverer_cannot_change_streams_of_other_logs(
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


def test_a_stream_of_a_deleted_topic_keeps_no_log_open(
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


def test_the_next_process_recovers_its_predecessors_log_and_has_its_own(
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


def test_a_recovery_by_another_broker_stays_with_it_while_it_has_rights(
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


def test_a_node_changes_its_kind_of_log_only_when_the_old_one_is_empty(
    ledger: Ledger, broker: Caller, stream: int
) -> None:
    with pytest.raises(OperationError, match="start the node with that log and stop it cleanly"):
        ledger.register(0, wal=WalKind.FILE)
    ledger.do(broker, close_streams=closing(stream, 0))
    with pytest.raises(OperationError, match="in the object store"):
        ledger.register(0, wal=WalKind.FILE)
    ledger.do(broker, close_wal=wire.CloseWal(wal=wal_name(broker)))
    with_file = ledger.register(0, wal=WalKind.FILE)
    ledger.open(with_file, stream, 2)
    with pytest.raises(OperationError, match="in a file"):
        ledger.register(0, wal=OBJECT)


def test_a_broker_with_a_file_wal_is_recorded_without_a_kind(ledger: Ledger) -> None:
    record = register_node(hello(0), ledger.view, 1).records[0]
    assert record.node_registered.wal == records_pb2.WAL_KIND_UNSPECIFIED


def test_an_unknown_kind_of_log_is_refused(ledger: Ledger) -> None:
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


def test_an_unknown_log_counts_as_closed(ledger: Ledger, broker: Caller) -> None:
    never = wire.WalName(node_id=broker.node_id, wal_epoch=NodeEpoch(99))
    assert ledger.decide(broker, close_wal=wire.CloseWal(wal=never)) == []
    body = wire.CommitUpload(recovered=never, trim_sequence=1)
    assert ledger.refusal(broker, commit_upload=body) == "WAL_NOT_HELD"
