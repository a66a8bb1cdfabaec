"""Registration, keys, and blocks of producer ids."""

from __future__ import annotations

from typing import Any

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.nodes.descriptions import describe_nodes, unregister_node
from ponor_controller.domains.nodes.registration import register_node
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id

from services.controller.tests.ledger import Ledger

BROKER, GC = 1, 3


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def _hello(**changes: Any) -> wire.Hello:
    fields = {
        "node_id": compose_node_id(ClusterOrdinal(7), 0),
        "role": BROKER,
        "incarnation": bytes(16),
        "kafka_host": "localhost",
        "kafka_port": 9092,
        **changes,
    }
    return wire.Hello(**fields)


def test_epochs_rise_by_one_with_every_new_process(ledger: Ledger) -> None:
    first = ledger.register(0, incarnation=b"a" * 16)
    again = ledger.register(0, incarnation=b"a" * 16)
    second = ledger.register(0, incarnation=b"b" * 16)
    assert [first.node_epoch, again.node_epoch, second.node_epoch] == [1, 1, 2]
    other = ledger.register(1)
    assert other.node_epoch == 1


def test_a_new_process_starts_a_new_leader_epoch_of_every_partition_it_leads(ledger: Ledger) -> None:
    broker, other = ledger.register(0), ledger.register(1)
    body = wire.CreateTopic(name="t", partitions=4, replication_factor=-1)
    ledger.do(broker, create_topic=body)
    ledger.register(0)
    epochs = {(row.leader_id, row.leader_epoch) for row in ledger.image[PARTITIONS]}
    assert epochs == {(broker.node_id, 1), (other.node_id, 0)}


def test_repeated_registration_of_one_process_writes_nothing(ledger: Ledger) -> None:
    ledger.register(0, incarnation=b"a" * 16)
    before = ledger.image.digest
    ledger.register(0, incarnation=b"a" * 16)
    assert ledger.image.digest == before


def test_a_replaced_process_cannot_return(ledger: Ledger) -> None:
    old = ledger.register(0, incarnation=b"a" * 16)
    ledger.register(0, incarnation=b"b" * 16)
    hello = _hello(incarnation=b"a" * 16, node_epoch=old.node_epoch)
    with pytest.raises(OperationError) as refused:
        register_node(hello, ledger.view, ledger.now_ms)
    assert refused.value.code == error_pb2.ERROR_CODE_NODE_EPOCH_STALE


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster_id": "another"},
        {"kafka_host": "h" * 256},
        {"node_id": 5},
        {"node_id": -1},
        {"node_id": 1 << 30},
        {"role": 0},
        {"role": 99},
        {"incarnation": b"short"},
        {"kafka_host": ""},
        {"kafka_port": 0},
        {"kafka_port": 70_000},
    ],
)
def test_an_invalid_hello_is_refused(ledger: Ledger, changes: dict[str, Any]) -> None:
    with pytest.raises(OperationError) as refused:
        register_node(_hello(**changes), ledger.view, ledger.now_ms)
    assert refused.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST


def test_a_node_id_keeps_its_role(ledger: Ledger) -> None:
    ledger.register(0)
    with pytest.raises(OperationError, match=r"is registered as a broker.*ponor cluster unregister"):
        register_node(_hello(role=GC), ledger.view, ledger.now_ms)


class Heard:
    """A leader that hears none of the nodes, or all."""

    def __init__(self, hears: bool) -> None:
        self._hears = hears

    def is_away(self, _: NodeId) -> bool:
        return not self._hears

    def is_suspected(self, _: NodeId) -> bool:
        return not self._hears

    def heard_ms_ago(self, _: NodeId) -> int | None:
        return 20 if self._hears else None


def _unregister(ledger: Ledger, node_id: int, *, hears: bool = False) -> None:
    ledger.apply(unregister_node(NodeId(node_id), ledger.view, Heard(hears)))


def test_an_unregistered_id_may_get_another_role_at_a_higher_epoch(ledger: Ledger) -> None:
    node_id = compose_node_id(ClusterOrdinal(7), 3)
    ghost = ledger.register(3, role=records_pb2.NODE_ROLE_GC).node_epoch
    with pytest.raises(OperationError, match="is registered as a gc"):
        register_node(_hello(node_id=node_id, incarnation=b"b" * 16), ledger.view, ledger.now_ms)
    with pytest.raises(OperationError, match="alive"):
        _unregister(ledger, node_id, hears=True)
    _unregister(ledger, node_id)
    _unregister(ledger, node_id)
    assert [row.node_id for row in describe_nodes(ledger.view, Heard(hears=False)).nodes] == []
    assert ledger.register(3).node_epoch > ghost, (
        "objects and streams contain epochs of a node id: they never restart"
    )
    (described,) = describe_nodes(ledger.view, Heard(hears=True)).nodes
    assert (described.role, described.fenced, described.connected) == (BROKER, False, True)
    assert described.heard_ms_ago == 20


def test_an_unregistered_process_must_stop(ledger: Ledger) -> None:
    caller = ledger.register(0, incarnation=b"a" * 16)
    _unregister(ledger, caller.node_id)
    with pytest.raises(OperationError) as refused:
        register_node(_hello(incarnation=b"a" * 16), ledger.view, ledger.now_ms)
    assert refused.value.code == error_pb2.ERROR_CODE_NODE_FENCED


def test_a_node_that_holds_anything_is_not_unregistered(ledger: Ledger) -> None:
    caller = ledger.register(0)
    ledger.do(caller, create_topic=wire.CreateTopic(name="t", partitions=4, replication_factor=-1))
    with pytest.raises(OperationError, match=r"still has 4 partitions.*ponor broker recover"):
        _unregister(ledger, caller.node_id)
    with pytest.raises(OperationError, match=r"node .* never registered") as refused:
        _unregister(ledger, caller.node_id + 1)
    assert refused.value.code == error_pb2.ERROR_CODE_NODE_NOT_FOUND


def test_a_key_is_put_once_and_later_puts_return_its_value(ledger: Ledger) -> None:
    broker, other = ledger.register(0), ledger.register(1)
    won = ledger.do(broker, put_key=wire.PutKey(key="setting/x", value=b"first")).key_held
    lost = ledger.do(other, put_key=wire.PutKey(key="setting/x", value=b"second")).key_held
    assert (won.created, won.value) == (True, b"first")
    assert (lost.created, lost.value) == (False, b"first")


def test_keys_and_values_are_limited(ledger: Ledger) -> None:
    broker = ledger.register(0)
    for key, value in (("", b""), ("k" * 1_025, b""), ("k", b"v" * 4_097)):
        assert ledger.refusal(broker, put_key=wire.PutKey(key=key, value=value)) == "INVALID_REQUEST"


def test_blocks_of_producer_ids_never_overlap(ledger: Ledger) -> None:
    broker, other = ledger.register(0), ledger.register(1)
    one = ledger.do(broker, allocate_producer_ids=wire.AllocateProducerIds(count=1_000)).producer_ids_granted
    two = ledger.do(other, allocate_producer_ids=wire.AllocateProducerIds(count=10)).producer_ids_granted
    assert two.first_producer_id == one.first_producer_id + 1_000
    assert one.first_producer_id >> 49 == 7
    for count in (0, 10_001):
        body = wire.AllocateProducerIds(count=count)
        assert ledger.refusal(broker, allocate_producer_ids=body) == "INVALID_REQUEST"


def test_each_of_many_keys_gets_the_first_value_put(ledger: Ledger) -> None:
    broker = ledger.register(0)
    ledger.do(broker, put_key=wire.PutKey(key="b", value=b"first"))
    puts = [wire.PutKey(key=key, value=b"mine") for key in "abc"]
    held = ledger.do(broker, put_keys=wire.PutKeys(puts=puts)).keys_held.held
    assert [(one.value, one.created) for one in held] == [(b"mine", True), (b"first", False), (b"mine", True)]
    again = ledger.do(broker, put_keys=wire.PutKeys(puts=puts)).keys_held.held
    assert [(one.value, one.created) for one in again] == [
        (b"mine", False),
        (b"first", False),
        (b"mine", False),
    ]


def test_keys_in_one_operation_are_put_atomically(ledger: Ledger) -> None:
    broker = ledger.register(0)
    twice = [wire.PutKey(key="a", value=b"v"), wire.PutKey(key="a", value=b"w")]
    for puts in ([], twice, [wire.PutKey(key="a", value=b"v"), wire.PutKey(key="", value=b"v")]):
        assert ledger.refusal(broker, put_keys=wire.PutKeys(puts=puts)) == "INVALID_REQUEST"
    assert ledger.image[KEYS].get("a") is None
