"""Configurations of all pods of the chart, as the services read them: they agree with each other and with the
names that Kubernetes resolves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.containers import broker_of, compactor_of, controller_of, gc_of
from tests.deploy.rendering import NAMESPACE, SMALLEST, of_kind, render

HOSTS = f"demo-ponor-controller-{{}}.demo-ponor-controller.{NAMESPACE}.svc.cluster.local"


def environment(manifests: list[dict[str, Any]], workload: dict[str, Any], pod: str) -> dict[str, str]:
    """The environment that Kubernetes sets in the first container of a pod of this workload."""
    found: dict[str, str] = {}
    for row in workload["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in row:
            found[row["name"]] = row["value"]
        elif "fieldRef" in row["valueFrom"]:
            assert row["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
            found[row["name"]] = pod
        else:
            source = row["valueFrom"]["configMapKeyRef"]
            found[row["name"]] = of_kind(manifests, "ConfigMap", source["name"])["data"][source["key"]]
    return found


def test_controllers_use_the_names_of_their_pods(tmp_path: Path) -> None:
    manifests = render({**SMALLEST, "controllers": {"format": True}})
    workload = of_kind(manifests, "StatefulSet", "-controller")
    service = of_kind(manifests, "Service", "-controller")
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    ports = {row["name"]: row["port"] for row in service["spec"]["ports"]}
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert {row["name"]: row["containerPort"] for row in container["ports"]} == {**ports, "metrics": 9404}
    for ordinal in range(workload["spec"]["replicas"]):
        pod = f"{workload['metadata']['name']}-{ordinal}"
        controller = controller_of(environment(manifests, workload, pod), tmp_path)
        own = next(row for row in controller.options.voters if row.node_id == controller.options.node_id)
        assert own.service_address == f"{HOSTS.format(ordinal)}:{ports['session']}"
        assert own.peer_address == f"{HOSTS.format(ordinal)}:{ports['peer']}"
        assert controller.options.listen == f"0.0.0.0:{ports['session']}"
        assert controller.options.format is True
        assert controller.metrics == "0.0.0.0:9404"


def test_brokers_find_the_controllers_and_clients_find_the_brokers(tmp_path: Path) -> None:
    manifests = render({**SMALLEST, "brokers": {"settings": {"connections_max": 123}}})
    workload = of_kind(manifests, "StatefulSet", "-broker")
    for ordinal in range(workload["spec"]["replicas"]):
        pod = f"{workload['metadata']['name']}-{ordinal}"
        broker = broker_of(environment(manifests, workload, pod), tmp_path)
        assert broker.options.controllers == tuple(f"{HOSTS.format(each)}:9090" for each in range(3))
        assert broker.options.advertised_host == f"{pod}.demo-ponor-broker.{NAMESPACE}.svc.cluster.local"
        assert (
            broker.options.kafka_port == of_kind(manifests, "Service", "-broker")["spec"]["ports"][0]["port"]
        )
        assert broker.options.wal.name == "OBJECT"
        assert broker.settings.connections_max == 123
        assert broker.settings.drain_ms_max == (600 - 5 - 15) * 1000
        assert broker.options.object_store == SMALLEST["objectStore"]["url"]
        _probes_ask_where_the_service_answers(workload, broker.metrics)


def test_external_clients_get_the_port_at_which_each_broker_listens(tmp_path: Path) -> None:
    kafka = {
        "external": "NodePort",
        "port": 31000,
        "portStep": 1,
        "externalReplicas": 3,
        "advertisedHost": "kafka.example",
    }
    manifests = render({**SMALLEST, "brokers": {"kafka": kafka}})
    workload = of_kind(manifests, "StatefulSet", "-broker")
    for ordinal in range(3):
        pod = f"{workload['metadata']['name']}-{ordinal}"
        broker = broker_of(environment(manifests, workload, pod), tmp_path)
        service = of_kind(manifests, "Service", pod)["spec"]
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == pod
        assert service["ports"] == [
            {
                "name": "kafka",
                "port": broker.options.kafka_port,
                "targetPort": broker.options.kafka_port,
                "nodePort": broker.options.kafka_port,
            }
        ]
        assert broker.options.advertised_host == "kafka.example"


@pytest.mark.parametrize(("role", "read"), [("gc", gc_of), ("compactor", compactor_of)])
def test_every_collector_and_compactor_has_its_own_node_id(role: str, read: Any, tmp_path: Path) -> None:
    manifests = render({**SMALLEST, role: {"count": 2}})
    ids = set()
    for ordinal in range(2):
        workload = of_kind(manifests, "Deployment", f"-{role}-{ordinal}")
        assert workload["spec"]["strategy"] == {"type": "Recreate"}
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        pod = f"{workload['metadata']['name']}-5d8f-abcde"
        found = read(environment(manifests, workload, pod), tmp_path)
        ids.add(found.options.node_id)
        _probes_ask_where_the_service_answers(workload, found.metrics)
    assert len(ids) == 2


@pytest.mark.parametrize("share", [False, True])
def test_every_node_with_the_store_gets_the_share_setting(share: bool, tmp_path: Path) -> None:
    store = {**SMALLEST["objectStore"], "shareStore": share}
    manifests = render({**SMALLEST, "objectStore": store})
    for kind, suffix, read in (
        ("StatefulSet", "-broker", broker_of),
        ("Deployment", "-gc-0", gc_of),
        ("Deployment", "-compactor-0", compactor_of),
    ):
        workload = of_kind(manifests, kind, suffix)
        found = read(environment(manifests, workload, "demo-0"), tmp_path)
        assert found.options.membership.share_store is share
    controllers = of_kind(manifests, "StatefulSet", "-controller")
    assert "PONOR_SHARE_STORE" not in environment(manifests, controllers, "demo-controller-0")


def test_selectors_select_their_pods() -> None:
    manifests = render(dict(SMALLEST))
    for kind, field in (
        ("StatefulSet", "selector"),
        ("Service", "selector"),
        ("PodDisruptionBudget", "selector"),
    ):
        for role in ("controller", "broker"):
            wanted = of_kind(manifests, kind, f"-{role}")["spec"][field]
            labels = of_kind(manifests, "StatefulSet", f"-{role}")["spec"]["template"]["metadata"]["labels"]
            assert wanted.get("matchLabels", wanted).items() <= labels.items()


def _probes_ask_where_the_service_answers(workload: dict[str, Any], metrics: str | None) -> None:
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert metrics is not None
    ports = {row["name"]: row["containerPort"] for row in container["ports"]}
    for kind in ("startup", "readiness", "liveness"):
        assert int(metrics.rpartition(":")[2]) == ports[container[f"{kind}Probe"]["httpGet"]["port"]]
