"""Requests of connections that another broker has given up."""

import pytest
from ponor_broker.peers import connection_order
from ponor_broker.peers.connection_order import ConnectionOrder, peer_client_id


def test_a_request_of_an_older_connection_is_refused() -> None:
    order = ConnectionOrder()
    old, new = peer_client_id(1, 5, 9), peer_client_id(1, 5, 10)

    assert order.admits(old)
    assert order.admits(old)
    assert order.admits(new)
    assert not order.admits(old)
    assert order.admits(new)


def test_a_connection_of_an_earlier_process_is_older() -> None:
    order = ConnectionOrder()
    assert order.admits(peer_client_id(1, 6, 1))
    assert not order.admits(peer_client_id(1, 5, 1_000))


def test_the_order_is_that_of_one_broker() -> None:
    order = ConnectionOrder()
    assert order.admits(peer_client_id(1, 5, 10))
    assert order.admits(peer_client_id(2, 5, 9))
    assert order.admits(peer_client_id(11, 5, 9))


@pytest.mark.parametrize(
    "client_id",
    [None, "", "adminclient-1", "broker-1", "broker-1/2", "broker-1/2/3/4", "broker-1/2/-3", "broker-1/2/x"],
)
def test_other_clients_are_admitted(client_id: str | None) -> None:
    order = ConnectionOrder()
    assert order.admits(peer_client_id(1, 2, 3))
    assert order.admits(client_id)
    assert order.admits(client_id)


def test_the_known_senders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_order, "SENDERS_MAX", 3)
    order = ConnectionOrder()
    for node_id in (1, 2, 3):
        order.admits(peer_client_id(node_id, 1, 2))
    order.admits(peer_client_id(1, 1, 2))
    order.admits(peer_client_id(4, 1, 2))

    assert not order.admits(peer_client_id(1, 1, 1)), "the recent ones are kept"
    assert order.admits(peer_client_id(2, 1, 1))
