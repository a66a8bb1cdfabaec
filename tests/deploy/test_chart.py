"""The Helm chart, rendered by Helm's engine and validated against Kubernetes' own schemas, offline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ponor_broker.budgets import memory_bytes
from ponor_broker.settings import BrokerSettings

from tests.deploy.rendering import (
    SMALLEST,
    RefusedError,
    check_manifests,
    of_kind,
    render,
    render_files,
)

PROCESS_BYTES = 512 << 20
"""Memory of interpreter, code, and the metadata of a large cluster."""
GOLDEN = Path(__file__).with_name("golden") / "smallest.yaml"
"""The manifests of the smallest values; PONOR_GOLDEN=1 rewrites them. Checked without Helm, and
they show reviewers the effect of a change."""


def values(**changes: Any) -> dict[str, Any]:
    """The smallest values plus these."""
    return {**SMALLEST, **changes}


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and pod template of every workload."""
    for manifest in manifests:
        if manifest["kind"] in {"StatefulSet", "Deployment", "Job"}:
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


SPARK_DRIVERS = {"podSelector": {"matchLabels": {"spark-role": "driver"}}}
VARIATIONS: dict[str, dict[str, Any]] = {
    "smallest": {},
    "first install": {"controllers": {"format": True, "replicas": 1}},
    "file WAL": {"brokers": {"wal": "file", "storage": {"size": "50Gi", "className": "fast"}}},
    "node ports": {
        "brokers": {
            "kafka": {
                "external": "NodePort",
                "port": 31000,
                "portStep": 1,
                "externalReplicas": 3,
                "advertisedHost": "kafka.example",
            }
        }
    },
    "load balancers": {
        "brokers": {
            "replicas": 2,
            "kafka": {
                "external": "LoadBalancer",
                "externalReplicas": 2,
                "advertisedHost": "broker-{ordinal}.example",
                "externalAnnotations": {"cloud/internal": "true"},
            },
        }
    },
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "keda": {"autoscaling": {"kind": "keda", "keda": {"serverAddress": "http://prometheus:9090"}}},
    "everything": {
        "objectStore": {"url": "s3://b/p", "existingSecret": "bucket"},
        "image": {"repository": "registry/ponor", "tag": "x", "pullSecrets": ["pull"]},
        "gc": {"count": 2, "settings": {"poll_interval_ms_min": 100}},
        "compactor": {"count": 3, "settings": {"compaction_budget_bytes": 1 << 28}},
        "brokers": {
            "nodeSelector": {"disk": "none"},
            "tolerations": [{"key": "kafka", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "podAnnotations": {"a": "b"},
            "env": [{"name": "X", "value": "y"}],
            "settings": {"park_ms_max": 200},
        },
        "metrics": {"podMonitor": True, "podMonitorLabels": {"release": "prometheus"}},
        "networkPolicy": {
            "enabled": True,
            "clients": [{"namespaceSelector": {}}],
            "controllerClients": [SPARK_DRIVERS],
        },
        "controllers": {"peerTls": {"existingSecret": "peers"}},
        "otlp": {"endpoint": "http://collector:4318", "traceRatio": "0.1"},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/ponor"}},
    },
    "as little as possible": {
        "gc": {"count": 0},
        "compactor": {"count": 0},
        "podDisruptionBudgets": False,
        "topologySpread": {"enabled": False},
        "announceStop": {"enabled": False},
        "serviceAccount": {"create": False},
        "metrics": {"annotations": False},
    },
}


def external(kind: str, **kafka: Any) -> dict[str, Any]:
    """Brokers with addresses for external clients."""
    return {"brokers": {"kafka": {"external": kind, **kafka}}}


@pytest.mark.parametrize("name", VARIATIONS)
def test_rendered_manifests_are_valid(name: str) -> None:
    check_manifests(render(values(**VARIATIONS[name])))


def test_the_golden_manifests_are_valid() -> None:
    check_manifests([each for each in yaml.safe_load_all(GOLDEN.read_text()) if each is not None])


def test_the_golden_manifests_equal_the_rendered_ones() -> None:
    files = sorted(render_files(values()).items())
    text = "".join(
        f"# {name}\n{text.strip()}\n---\n" for name, text in files if name.endswith(".yaml") and text.strip()
    )
    if os.environ.get("PONOR_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), (
        "the chart changed: review the difference, then run with PONOR_GOLDEN=1"
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"objectStore": {"url": ""}}, "objectStore.url is missing"),
        ({"objectStore": {"url": "file:///data"}}, "objectStore"),
        ({"controllers": {"replicas": 2}}, "replicas"),
        ({"brokers": {"wal": "tape"}}, "wal"),
        ({"brokers": {"kafka": {"external": "LoadBalancer"}}}, "advertisedHost"),
        (external("LoadBalancer", advertisedHost="kafka.example"), "write {ordinal} or {pod}"),
        (external("LoadBalancer", advertisedHost="b-{ordinal}", externalReplicas=2), "externalReplicas=3"),
        (external("NodePort", advertisedHost="nodes.example"), "set brokers.kafka.port=31000"),
        (external("NodePort", advertisedHost="n", port=31000), "set .*portStep=1"),
        (external("NodePort", advertisedHost="n", port=9092, portStep=1), "set brokers.kafka.port=31000"),
        (external("NodePort", advertisedHost="n", port=32766, portStep=1), "from 30000 to 32767"),
        (external("none", port=65530, portStep=1), "lower brokers.kafka.port"),
        (external("none", port=9400, portStep=1), "metrics.port=9404 is among them"),
        ({"autoscaling": {"kind": "keda"}}, "serverAddress"),
        ({"compactor": {"count": 17}}, "compactor"),
        ({"broker": {"replicas": 3}}, "broker"),
    ],
)
def test_impossible_values_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(RefusedError, match=word):
        render(values(**change))


def test_no_pod_runs_as_root_or_writes_outside_its_volumes() -> None:
    found = dict(pods(render(values())))
    assert len(found) == 5
    for template in found.values():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["limits"]["memory"]


def test_a_broker_with_an_object_wal_has_no_volume_and_one_with_a_file_wal_keeps_its_own() -> None:
    diskless = of_kind(render(values()), "StatefulSet", "-broker")["spec"]
    assert "volumeClaimTemplates" not in diskless
    assert {"name": "data", "emptyDir": {}} in diskless["template"]["spec"]["volumes"]
    with_disk = of_kind(render(values(brokers={"wal": "file"})), "StatefulSet", "-broker")["spec"]
    assert [claim["metadata"]["name"] for claim in with_disk["volumeClaimTemplates"]] == ["data"]
    assert with_disk["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


def test_a_broker_has_time_to_drain() -> None:
    manifests = render(values())
    spec = of_kind(manifests, "StatefulSet", "-broker")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 600
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    assert of_kind(manifests, "PodDisruptionBudget", "-broker")["spec"]["maxUnavailable"] == 1
    # Its name resolves for clients until it has exited.
    assert of_kind(manifests, "Service", "-broker")["spec"]["publishNotReadyAddresses"] is True


def test_credentials_come_from_a_secret_and_only_to_pods_that_use_the_store() -> None:
    manifests = render(values(objectStore={"url": "s3://b/p", "existingSecret": "bucket"}))
    for name, template in pods(manifests):
        container = template["spec"]["containers"][0]
        sources = [row["secretRef"]["name"] for row in container.get("envFrom", [])]
        touches = any(role in name for role in ("-broker", "-gc-", "-compactor-"))
        assert sources == (["bucket"] if touches else [])
        assert not any(row["name"].startswith("AWS_") for row in container.get("env", []))


def test_with_an_autoscaler_the_chart_sets_no_number_of_replicas() -> None:
    assert of_kind(render(values()), "StatefulSet", "-broker")["spec"]["replicas"] == 3
    for kind in ("hpa", "keda"):
        manifests = render(values(**VARIATIONS[kind]))
        assert "replicas" not in of_kind(manifests, "StatefulSet", "-broker")["spec"]


def test_autoscalers_read_the_balancers_metrics() -> None:
    hpa = of_kind(render(values(**VARIATIONS["hpa"])), "HorizontalPodAutoscaler")["spec"]
    wanted, load = (row["external"] for row in hpa["metrics"])
    assert wanted["metric"]["name"] == "ponor_brokers_wanted"
    assert wanted["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert load["metric"]["name"] == "ponor_broker_load"
    assert load["target"] == {"type": "Value", "value": "0.8"}
    keda = of_kind(render(values(**VARIATIONS["keda"])), "ScaledObject")["spec"]
    queries = [row["metadata"]["query"] for row in keda["triggers"]]
    assert queries == [
        'max(ponor_brokers_wanted{namespace="streams"})',
        'avg(max by (broker) (ponor_broker_load{namespace="streams"}))',
    ]
    assert keda["scaleTargetRef"]["name"] == hpa["scaleTargetRef"]["name"] == "demo-ponor-broker"


def test_the_first_quorum_is_formed_only_on_request() -> None:
    for formatted in (False, True):
        manifests = render(values(controllers={"format": formatted}))
        assert of_kind(manifests, "ConfigMap", "-format")["data"]["format"] == str(formatted).lower()
    # Not in the pod template, so removing it restarts no pod.
    before, after = (
        of_kind(render(values(controllers={"format": each})), "StatefulSet", "-controller")
        for each in (True, False)
    )
    assert before == after


def test_every_service_has_its_own_probe_and_restarts_only_for_a_stuck_loop() -> None:
    found = [
        (name, container)
        for name, template in pods(render(values()))
        for container in template["spec"]["containers"]
        if "announce-stop" not in name
    ]
    assert len(found) == 4
    for _, container in found:
        assert {"name": "metrics", "containerPort": 9404} in container["ports"]
        paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
        assert {kind: get["path"] for kind, get in paths.items()} == {
            "startup": "/livez",
            "readiness": "/readyz",
            "liveness": "/livez",
        }
        assert {get["port"] for get in paths.values()} == {"metrics"}
        readiness = container["readinessProbe"]
        # A process that stops right after a probe leaves its service within five seconds.
        assert readiness["failureThreshold"] == 1
        assert readiness["periodSeconds"] + readiness["timeoutSeconds"] <= 5


def test_every_broker_has_its_own_node_port_in_the_clusters_range() -> None:
    found = [
        port["nodePort"]
        for manifest in render(values(**VARIATIONS["node ports"]))
        if manifest["kind"] == "Service" and manifest["spec"].get("type") == "NodePort"
        for port in manifest["spec"]["ports"]
    ]
    assert found == [31000, 31001, 31002]
    wide = external("NodePort", advertisedHost="n", port=9100, portStep=1, nodePorts={"first": 9000})
    assert render(values(**wide))


def test_the_memory_limit_of_a_broker_exceeds_the_sum_of_its_default_budgets() -> None:
    container = of_kind(render(values()), "StatefulSet", "-broker")["spec"]["template"]["spec"]["containers"][
        0
    ]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert int(limit.removesuffix("Gi")) << 30 >= memory_bytes(BrokerSettings()) + PROCESS_BYTES


def test_controllers_get_the_files_of_their_peer_tls() -> None:
    manifests = render(values(controllers={"peerTls": {"existingSecret": "peers"}}))
    spec = of_kind(manifests, "StatefulSet", "-controller")["spec"]["template"]["spec"]
    mount = {"name": "peer-tls", "mountPath": "/etc/ponor/peer-tls", "readOnly": True}
    assert mount in spec["containers"][0]["volumeMounts"]
    volume = next(each for each in spec["volumes"] if each["name"] == "peer-tls")
    assert volume["secret"] == {"secretName": "peers", "defaultMode": 0o440}
    assert {"name": "PONOR_PEER_TLS", "value": mount["mountPath"]} in spec["containers"][0]["env"]
    others = [template for name, template in pods(manifests) if "-controller" not in name]
    assert "peer-tls" not in str(others)
    assert "PONOR_PEER_TLS" not in str(render(values()))


def test_the_network_policy_admits_only_the_named_clients_of_controllers() -> None:
    for clients in ([], [SPARK_DRIVERS]):
        policy = {"enabled": True, "controllerClients": clients}
        rules = of_kind(render(values(networkPolicy=policy)), "NetworkPolicy", "-controller")["spec"][
            "ingress"
        ]
        to_controllers = [rule for rule in rules if {"port": 9090} in rule["ports"]]
        assert [rule["from"] for rule in to_controllers[1:]] == ([clients] if clients else [])
        assert all("from" in rule for rule in to_controllers)
        # No other service uses the controllers' port.
        assert all({"port": 9091} not in rule["ports"] for rule in to_controllers[1:])
