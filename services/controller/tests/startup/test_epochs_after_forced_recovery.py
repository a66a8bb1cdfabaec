"""Epochs after a forced recovery: no epoch that the lost part of the log may have assigned is assigned
again.
"""

from __future__ import annotations

from typing import Any

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.nodes.registration import register_node
from ponor_controller.kernel.operation import Caller
from ponor_controller.shared_rules.move_records import elected
from ponor_metadata.nouns.cluster import EPOCH_BITS, INCARNATION_MAX, next_incarnation, run_of
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_metadata.nouns.wals import WALS
from ponor_rpc.errors import OperationError
from s3stream.object_wal.slot_keys import EPOCH_MAX

from services.controller.tests.ledger import Ledger

INCARNATION = next_incarnation(0, controller=1, drawn=7)
FLOOR = run_of(INCARNATION) << EPOCH_BITS
PROCESS = b"p" * 16


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def recover_by_force(ledger: Ledger, incarnation: int = INCARNATION) -> None:
    raised = records_pb2.IncarnationRaised(incarnation=incarnation)
    ledger.apply([records_pb2.Record(incarnation_raised=raised)])


def new_topic(ledger: Ledger, caller: Caller) -> bytes:
    body = wire.CreateTopic(name="t", partitions=1, replication_factor=-1)
    return ledger.do(caller, create_topic=body).topic_held.topic_id


def hello(caller: Caller, **changes: Any) -> wire.Hello:
    fields = {
        "node_id": caller.node_id,
        "role": caller.role,
        "incarnation": PROCESS,
        "kafka_host": "localhost",
        "kafka_port": 9092,
        **changes,
    }
    return wire.Hello(**fields)


def test_the_log_and_leader_epochs_of_the_lost_tail_are_not_assigned_again() -> None:
    given = []
    for recovered in (False, True):  # two continuations of one history; the first one is lost
        ledger = Ledger()
        topic_id = new_topic(ledger, ledger.register(0, wal=WalKind.OBJECT))
        if recovered:
            recover_by_force(ledger)
        caller = ledger.register(0, wal=WalKind.OBJECT)
        ledger.do(caller, open_wal=wire.OpenWal())
        (wal_epoch,) = [row.wal_epoch for row in ledger.image[WALS]]
        partition = ledger.image[PARTITIONS].get((topic_id, 0))
        assert partition is not None
        given.append((wal_epoch, partition.leader_epoch))
    assert given == [(2, 1), (FLOOR, FLOOR)]


def test_new_nodes_new_partitions_and_elections_take_epochs_of_the_incarnation(ledger: Ledger) -> None:
    broker = ledger.register(0)
    topic_id = new_topic(ledger, broker)
    recover_by_force(ledger)
    assert [ledger.register(1).node_epoch, ledger.register(1).node_epoch] == [FLOOR, FLOOR + 1]
    more = wire.CreatePartitions(topic_id=topic_id, count=2)
    ledger.do(broker, create_partitions=more)
    ledger.apply([elected(ledger.view, row, broker.node_id) for row in ledger.image[PARTITIONS]])
    assert [row.leader_epoch for row in ledger.image[PARTITIONS]] == [FLOOR, FLOOR + 1]


def test_a_stream_is_not_opened_at_an_epoch_from_before_the_recovery(ledger: Ledger) -> None:
    (stream_id,) = ledger.create_streams(ledger.register(0))
    recover_by_force(ledger)
    broker = ledger.register(0)
    wanted = [wire.OpenStream(stream_id=stream_id, stream_epoch=7)]
    assert ledger.refusal(broker, open_streams=wire.OpenStreams(streams=wanted)) == "STREAM_FENCED"
    ledger.open(broker, stream_id, FLOOR)


def test_a_process_from_before_the_recovery_must_stop(ledger: Ledger) -> None:
    broker = ledger.register(0, incarnation=PROCESS)
    recover_by_force(ledger)
    with pytest.raises(OperationError, match="before the last forced recovery") as refused:
        register_node(hello(broker, node_epoch=broker.node_epoch), ledger.view, ledger.now_ms)
    assert refused.value.code == error_pb2.ERROR_CODE_NODE_EPOCH_STALE


def test_a_process_without_a_confirmed_epoch_gets_one_of_the_incarnation(ledger: Ledger) -> None:
    ledger.register(0, incarnation=PROCESS)
    recover_by_force(ledger)
    assert ledger.register(0, incarnation=PROCESS).node_epoch == FLOOR


def test_a_controller_without_the_recovery_registers_no_node(ledger: Ledger) -> None:
    broker = ledger.register(0, incarnation=PROCESS)
    later = hello(broker, node_epoch=broker.node_epoch, quorum_incarnation=1)
    with pytest.raises(OperationError, match="excluded this controller") as refused:
        register_node(later, ledger.view, ledger.now_ms)
    assert refused.value.code == error_pb2.ERROR_CODE_CONTROLLER_BEHIND


def test_epochs_of_the_last_incarnation_fit_into_protocol_and_keys() -> None:
    last = (run_of(INCARNATION_MAX) + 1 << EPOCH_BITS) - 1
    assert last == (1 << 31) - 1 <= EPOCH_MAX
