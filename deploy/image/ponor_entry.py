"""The entrypoint of the image: `ponor_entry.py ROLE` writes the configuration of one service from the
container's environment and then executes that service.

The environment variables of the container and the ordinal of the pod determine the configuration: node id,
port, and advertised name. The script replaces itself with the
service (exec), so that signals of the container runtime reach the service: SIGTERM drains a broker.

    PONOR_CLUSTER_ORDINAL   1 to 16,383, never changes; default 0: drawn at random by the controllers
    PONOR_CLUSTER_ID        id that a node expects and a new cluster gets; default: the controllers' cluster
    PONOR_SHARE_STORE       true: the object store may contain other clusters too; default false
    PONOR_CONTROLLERS       HOST,HOST,...: all controllers, by ordinal
    PONOR_CONTROLLER_PORT   controllers' port for nodes and tools; default 9090
    PONOR_PEER_PORT         controllers' port for each other; default 9091
    PONOR_PEER_TLS          directory with tls.crt, tls.key and ca.crt for mutual TLS between controllers;
                            default: no TLS
    PONOR_FORMAT            true, for the first start: controllers with empty directories become the voters
                            of a new cluster; default false: they wait until they are added to the quorum
    PONOR_OBJECT_STORE      s3://BUCKET/PREFIX?endpoint=URL or file:///DIR; credentials stay in AWS_* variables
    PONOR_WAL               object (default) or file
    PONOR_KAFKA_PORT        Kafka port of the broker with ordinal 0; default 9092
    PONOR_KAFKA_PORT_STEP   difference of the ports of consecutive ordinals; default 0
    PONOR_ADVERTISED_HOST   advertised host; {ordinal} and {pod} are replaced; default: {pod}
    PONOR_POD               name of this pod; default: the host name
    PONOR_ORDINAL           default: the number after the last dash of the pod's name
    PONOR_LISTEN            address to bind; default 0.0.0.0
    PONOR_METRICS_PORT      default 9404
    PONOR_DATA, PONOR_RUN   directories; default /var/lib/ponor and /run/ponor
    PONOR_SETTINGS          settings of this service: {"NAME": VALUE}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ponor_cli.supervisor.plan import BROKER_NUMBER_FIRST, CONTROLLER_NUMBER_FIRST, SHARED_NUMBER_FIRST
from ponor_cli.supervisor.up_options import WALS
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, UNKNOWN_ORDINAL, ClusterOrdinal, compose_node_id

NUMBER_FIRST: Final[Mapping[str, int]] = {
    "broker": BROKER_NUMBER_FIRST,
    **SHARED_NUMBER_FIRST,
    "controller": CONTROLLER_NUMBER_FIRST,
}
NUMBER_MAX: Final = 999
"""Each role has the numbers 0 to 999."""
PORT_MAX: Final = 65_535
PEER_TLS_FILES: Final = {"certificate": "tls.crt", "key": "tls.key", "authorities": "ca.crt"}
"""File names in a secret that cert-manager creates."""


class ConfigurationError(Exception):
    """A variable is missing or invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class ContainerEnvironment:
    """The environment of one container."""

    variables: Mapping[str, str]

    def text(self, name: str, default: str | None = None) -> str:
        """Return the value of a variable. Without a default it is required; an empty value counts as unset."""
        value = self.variables.get(name) or default
        if value is None:
            raise ConfigurationError(f"{name} is not set; see the head of ponor_entry.py")
        return value

    def number(self, name: str, default: int, maximum: int) -> int:
        """Return a variable as a number from 0 to `maximum`."""
        text = self.text(name, str(default))
        if not text.isdecimal() or int(text) > maximum:
            raise ConfigurationError(f"{name}={text}: give a number from 0 to {maximum}")
        return int(text)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Return a variable that must be one of `choices`."""
        text = self.text(name, default)
        if text not in choices:
            raise ConfigurationError(f"{name}={text}: give {' or '.join(choices)}")
        return text

    @property
    def pod(self) -> str:
        """The pod's name."""
        return self.text("PONOR_POD", os.uname().nodename)

    @property
    def ordinal(self) -> int:
        """The pod's ordinal in its StatefulSet."""
        given = self.variables.get("PONOR_ORDINAL") or self.pod.rpartition("-")[2]
        if not given.isdecimal() or int(given) > NUMBER_MAX:
            raise ConfigurationError(
                f"the pod's name {self.pod} does not end in a number from 0 to {NUMBER_MAX}; set PONOR_ORDINAL"
            )
        return int(given)

    @property
    def cluster_ordinal(self) -> ClusterOrdinal:
        """The cluster's ordinal; 0 if the controllers draw it."""
        return ClusterOrdinal(self.number("PONOR_CLUSTER_ORDINAL", UNKNOWN_ORDINAL, CLUSTER_ORDINAL_MAX))

    @property
    def controllers(self) -> list[str]:
        """Host names of the controllers, by ordinal."""
        hosts = [host.strip() for host in self.text("PONOR_CONTROLLERS").split(",")]
        if not all(hosts) or len(set(hosts)) != len(hosts):
            raise ConfigurationError(
                f"PONOR_CONTROLLERS={','.join(hosts)}: name every controller's host once"
            )
        return hosts

    def node_id(self, role: str, ordinal: int) -> int:
        """Return the permanent node id; only the node number if the controllers draw the cluster's ordinal."""
        return compose_node_id(self.cluster_ordinal, NUMBER_FIRST[role] + ordinal)


def configuration(role: str, environment: ContainerEnvironment) -> dict[str, Any]:
    """The configuration file of this service.

    Raises:
        ConfigurationError: the role is unknown, or a variable is missing or invalid.
    """
    if role not in NUMBER_FIRST:
        raise ConfigurationError(f"role {role}: give {', '.join(NUMBER_FIRST)}")
    listen = environment.text("PONOR_LISTEN", "0.0.0.0")  # noqa: S104 - a container has a network of its own
    config = {
        "node_id": environment.node_id(role, environment.ordinal),
        "data": environment.text("PONOR_DATA", "/var/lib/ponor"),
        "ready_file": str(ready_file(environment)),
        "metrics": f"{listen}:{environment.number('PONOR_METRICS_PORT', 9404, PORT_MAX)}",
        "settings": _settings(environment),
    }
    if environment.variables.get("PONOR_CLUSTER_ID"):
        config["cluster_id"] = environment.text("PONOR_CLUSTER_ID")
    if role == "controller":
        return {**config, **_controller(environment, listen)}
    port = environment.number("PONOR_CONTROLLER_PORT", 9090, PORT_MAX)
    config["controllers"] = [f"{host}:{port}" for host in environment.controllers]
    config["object_store"] = environment.text("PONOR_OBJECT_STORE")
    config["share_store"] = environment.choice("PONOR_SHARE_STORE", "false", ("true", "false")) == "true"
    if role == "broker":
        config |= _broker(environment, listen)
    return config


def _controller(environment: ContainerEnvironment, listen: str) -> dict[str, Any]:
    service_port = environment.number("PONOR_CONTROLLER_PORT", 9090, PORT_MAX)
    peer_port = environment.number("PONOR_PEER_PORT", 9091, PORT_MAX)
    voters = [
        {
            "node_id": environment.node_id("controller", ordinal),
            "peer_address": f"{host}:{peer_port}",
            "service_address": f"{host}:{service_port}",
        }
        for ordinal, host in enumerate(environment.controllers)
    ]
    tls = environment.text("PONOR_PEER_TLS", "")
    return {
        **({"peer_tls": {name: f"{tls}/{file}" for name, file in PEER_TLS_FILES.items()}} if tls else {}),
        "listen": f"{listen}:{service_port}",
        "peer_listen": f"{listen}:{peer_port}",
        **({"cluster_ordinal": ordinal} if (ordinal := environment.cluster_ordinal) else {}),
        "voters": voters,
        "format": environment.choice("PONOR_FORMAT", "false", ("true", "false")) == "true",
    }


def _broker(environment: ContainerEnvironment, listen: str) -> dict[str, Any]:
    ordinal = environment.ordinal
    step = environment.number("PONOR_KAFKA_PORT_STEP", 0, PORT_MAX)
    port = environment.number("PONOR_KAFKA_PORT", 9092, PORT_MAX) + step * ordinal
    if port > PORT_MAX:
        raise ConfigurationError(f"broker {ordinal} would listen on port {port}; lower PONOR_KAFKA_PORT")
    template = environment.text("PONOR_ADVERTISED_HOST", "{pod}")
    return {
        "kafka_host": listen,
        "kafka_port": port,
        "advertised_host": template.replace("{ordinal}", str(ordinal)).replace("{pod}", environment.pod),
        "wal": environment.choice("PONOR_WAL", "object", WALS),
    }


def _settings(environment: ContainerEnvironment) -> dict[str, Any]:
    text = environment.text("PONOR_SETTINGS", "{}")
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"PONOR_SETTINGS={text}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f'PONOR_SETTINGS={text}: give {{"NAME": VALUE}}')
    return settings


def ready_file(environment: ContainerEnvironment) -> Path:
    """The file that the service writes when it serves."""
    return Path(environment.text("PONOR_RUN", "/run/ponor")) / "ready.json"


def main() -> None:
    """Write the configuration and replace this process with the service."""
    environment = ContainerEnvironment(os.environ)
    try:
        if len(sys.argv) != 2:
            raise ConfigurationError(f"usage: ponor_entry.py ROLE; ROLE is one of {', '.join(NUMBER_FIRST)}")
        role = sys.argv[1]
        config = configuration(role, environment)
    except ConfigurationError as error:
        sys.exit(f"ponor_entry: {error}")
    # After a restart of the container, the file of the previous process still exists.
    ready_file(environment).unlink(missing_ok=True)
    path = ready_file(environment).with_name(f"{role}.json")
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    os.execv(sys.executable, [sys.executable, "-m", f"ponor_{role}", "--config", str(path)])  # noqa: S606 - becomes the service


if __name__ == "__main__":
    main()
