"""Listeners with TLS and SASL: real clients, a bounce of all credentials, and clients that do not belong."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs omit these names
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.scenarios import create_topic
from tests.ports import free_ports

BROKERS = 2
WAIT_S = 120.0
TOPIC = "orders"


class Failures:
    """Collects failed deliveries."""

    def __init__(self) -> None:
        self.errors: list[object] = []

    def delivered(self, error: object, _: object) -> None:
        """Callback of a delivery."""
        if error is not None:
            self.errors.append(error)


@pytest.mark.timeout(600)
def test_clients_of_each_listener(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    subprocess.run([ponor(), "certificates", "init", str(tls)], check=True)
    subprocess.run([ponor(), "certificates", "issue", str(tls), "alice"], check=True)
    port = free_ports(4 * BROKERS)
    listeners = tmp_path / "listeners.json"
    listeners.write_text(json.dumps(_listeners(port)))
    arguments = ["--brokers", str(BROKERS), "--listeners", str(listeners)]
    with LocalCluster(tmp_path / "cluster", arguments=arguments) as cluster:
        create_topic(cluster, TOPIC, 4)
        _set_password(cluster, "alice", "first")
        client_certificate = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(tls / "ca.pem"),
            "ssl.certificate.location": str(tls / "alice.pem"),
            "ssl.key.location": str(tls / "alice.key"),
        }
        _round_trip(port, client_certificate)
        for place, mechanism in (
            (2, "SCRAM-SHA-256"),
            (2, "SCRAM-SHA-512"),
            (2, "PLAIN"),
            (4, "SCRAM-SHA-256"),
        ):
            _round_trip(port + place, _sasl(place, tls, mechanism, "first"))
        _check_refusals(port, tls)
        _check_changed_credentials(cluster, port, tls)


def _listeners(port: int) -> list[dict[str, Any]]:
    certificate = {"certificate": "tls/broker.pem", "key": "tls/broker.key"}
    clients = {"client_ca": "tls/ca.pem", "client_certificates": "required"}
    return [
        {"name": "TLS", "protocol": "SSL", "port": port, **certificate, **clients},
        {
            "name": "SECURE",
            "protocol": "SASL_SSL",
            "port": port + 2,
            "sasl_mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"],
            **certificate,
        },
        {"name": "SCRAM", "protocol": "SASL_PLAINTEXT", "port": port + 4},
    ]


def _sasl(place: int, tls: Path, mechanism: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL" if place == 2 else "SASL_PLAINTEXT",
        "ssl.ca.location": str(tls / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


def _set_password(cluster: LocalCluster, user: str, password: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    changes = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    # Kafka permits one change for each user in a request.
    for change in changes:
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(WAIT_S)


def _round_trip(port: int, security: Mapping[str, str]) -> None:
    """Produce to every partition, and consume in a group: through the leaders that Metadata names."""
    bootstrap = {"bootstrap.servers": f"127.0.0.1:{port}", **security}
    values = {f"{port}-{security.get('sasl.mechanism')}-{number}" for number in range(40)}
    failures = Failures()
    producer = confluent_kafka.Producer({**bootstrap, "acks": "all"})
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % 4, on_delivery=failures.delivered)
    assert producer.flush(WAIT_S) == 0
    assert not failures.errors
    brokers = producer.list_topics(timeout=WAIT_S).brokers.values()
    assert sorted(broker.port for broker in brokers) == [port, port + 1]
    consumer = confluent_kafka.Consumer(
        {**bootstrap, "group.id": f"g-{port}-{time.monotonic_ns()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + WAIT_S
    while values and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.discard((message.value() or b"").decode())
    consumer.close()
    assert not values


def _check_refusals(port: int, tls: Path) -> None:
    secure = _sasl(2, tls, "SCRAM-SHA-256", "first")
    anonymous = {"security.protocol": "SSL", "ssl.ca.location": str(tls / "ca.pem")}
    for place, security in (
        (2, {**secure, "sasl.password": "wrong"}),
        (2, {**secure, "sasl.username": "mallory"}),
        (2, {**secure, "sasl.mechanism": "PLAIN", "sasl.password": "wrong"}),
        (4, {**_sasl(4, tls, "PLAIN", "first")}),  # not enabled there
        (2, anonymous),
        (2, {"security.protocol": "PLAINTEXT"}),
        (0, {"security.protocol": "PLAINTEXT"}),
        (0, anonymous),  # without a client certificate
    ):
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port + place}", **security})
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=3)


def _check_changed_credentials(cluster: LocalCluster, port: int, tls: Path) -> None:
    """A new password and a new certificate take effect without a restart; open connections continue."""
    security = _sasl(2, tls, "SCRAM-SHA-256", "first")
    failures = Failures()
    producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{port + 2}", **security})
    producer.produce(TOPIC, "before", partition=0)
    assert producer.flush(WAIT_S) == 0
    renewed = [ponor(), "certificates", "issue", str(tls), "broker", "--host", "127.0.0.1", "--replace"]
    subprocess.run(renewed, check=True)
    _set_password(cluster, "alice", "second")
    producer.produce(TOPIC, "after", partition=0, on_delivery=failures.delivered)
    assert producer.flush(WAIT_S) == 0
    assert not failures.errors
    _round_trip(port + 2, _sasl(2, tls, "SCRAM-SHA-512", "second"))
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient({"bootstrap.servers": f"127.0.0.1:{port + 2}", **security}).list_topics(timeout=3)
