"""The compose file, without a container engine: its keys are valid, and every container's
configuration is accepted by its service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.deploy.composition import COMPOSE, containers, read_composition
from tests.deploy.containers import ROOT, broker_of, compactor_of, controller_of, gc_of

SERVICE_KEYS = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "hostname", "image", "ports",
    "read_only", "restart", "security_opt", "stop_grace_period", "tmpfs", "volumes",
}  # fmt: skip
"""Keys of the Compose specification that the file uses; any other key is a mistake."""

ROLES: dict[str, Any] = {
    "controller": controller_of,
    "broker": broker_of,
    "gc": gc_of,
    "compactor": compactor_of,
}
"""The configuration reader of each role."""


def test_the_file_has_only_known_keys() -> None:
    content = read_composition()
    assert {key for key in content if not key.startswith("x-")} == {"name", "services", "volumes"}
    for container in containers():
        assert set(container.spec) <= SERVICE_KEYS, container.name
    named = {volume.split(":")[0] for each in containers() for volume in each.spec.get("volumes", [])}
    assert {name for name in named if not name.startswith(".")} == set(content["volumes"])


def test_there_are_three_controllers_three_brokers_a_collector_a_compactor_and_a_store() -> None:
    assert [len(containers(role)) for role in ROLES] == [3, 3, 1, 1]
    assert len(containers()) == 9
    assert all(each.spec["hostname"] == each.name for each in containers())


def test_controllers_form_one_quorum(tmp_path: Path) -> None:
    found = [controller_of(each.environment, tmp_path).options for each in containers("controller")]
    assert all(options.voters == found[0].voters and not options.format for options in found)
    assert [voter.node_id for voter in found[0].voters] == [options.node_id for options in found]
    hosts = {each.name for each in containers("controller")}
    assert {voter.service_address.partition(":")[0] for voter in found[0].voters} == hosts


def test_brokers_advertise_the_published_ports(tmp_path: Path) -> None:
    for each in containers("broker"):
        broker = broker_of(each.environment, tmp_path)
        port = broker.options.kafka_port
        assert each.spec["ports"] == [f"{port}:{port}"]
        assert broker.options.advertised_host == "localhost"
        assert broker.options.wal.name == "OBJECT"


def test_all_services_use_the_store_of_the_file_with_a_valid_key(tmp_path: Path) -> None:
    store = next(each for each in containers() if each.name == "s3")
    keys = (COMPOSE.parent / "s3.json").read_text()
    for each in [*containers("broker"), *containers("gc"), *containers("compactor")]:
        endpoint = urlsplit(
            ROLES[each.command[0]](each.environment, tmp_path).options.object_store.partition("endpoint=")[2]
        )
        assert endpoint.hostname == store.name
        assert f"-s3.port={endpoint.port}" in store.command
        assert each.environment["AWS_SECRET_ACCESS_KEY"] in keys
        assert set(each.spec["depends_on"]) == {"s3", "controller-0", "controller-1", "controller-2"}


@pytest.mark.parametrize("role", ROLES)
def test_a_container_is_ready_when_its_service_is(tmp_path: Path, role: str) -> None:
    for each in containers(role):
        assert ROLES[role](each.environment, tmp_path).metrics == "0.0.0.0:9404", "the address of the probe"
        assert each.spec["healthcheck"]["test"] == ["CMD", "python", "/opt/ponor/ponor_probe.py", "readyz"]
        assert any(mount.startswith("/run/ponor:") for mount in each.spec["tmpfs"])


def test_the_image_is_built_from_existing_files() -> None:
    build = containers("gc")[0].spec["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    lines = (context / build["dockerfile"]).read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    assert copied
    for name in copied:
        assert (context / name).exists(), name
    assert lines[-1] == 'ENTRYPOINT ["python", "/opt/ponor/ponor_entry.py"]'
    assert "USER 10001:10001" in lines
