"""Options of `ponor up` and their checks. Pure: nothing is started or written here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ponor_broker.listener_configuration import ListenerConfigurationError, read_listeners
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal

from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.quorum_file import FIRST_CONTROLLERS
from ponor_cli.supervisor.port_plan import BLOCK

PORT_MAX: Final = 65_535
EVERY_INTERFACE: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound
BROKERS_MAX = 16
GCS_MAX = 16
COMPACTORS_MAX = 8
CONTROLLERS_MAX: Final = 2 * max(FIRST_CONTROLLERS)
FILE_KEYS: Final = ("certificate", "key", "client_ca")
"""Keys of a listener whose values are paths."""
WALS: Final = ("file", "object")
"""Place of a broker's write-ahead log: its own disk, or the object store."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of `ponor up`."""

    directory: ClusterDirectory
    controllers: int = 1
    brokers: int = 1
    compactors: int = 1
    gcs: int = 1
    host: str = "127.0.0.1"
    """Address on which all processes listen."""
    advertise: str | None = None
    """Host name for clients and nodes; None means `host`."""
    kafka_port: int = 9092
    object_store: str | None = None
    wal: str = "file"
    otlp: str | None = None
    trace_ratio: float | None = None
    cluster_ordinal: ClusterOrdinal | None = None
    """None: `quorum_file` draws it for a new cluster, and later reads it from the directory."""
    share_store: bool = False
    """Whether the object store may hold other clusters."""
    listeners: tuple[dict[str, Any], ...] = ()
    """Listeners of broker 0 beside the one at `kafka_port`; those of broker k have the ports plus k."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Role -> setting -> value, as assigned to roles by `settings_routing`."""


def check_options(options: UpOptions) -> None:
    """Check the options against each other and their bounds.

    Raises:
        CommandError: names the option and the remedy.
    """
    if not 1 <= options.controllers <= CONTROLLERS_MAX:
        raise CommandError(f"--controllers {options.controllers}: choose 1, 3 or 5")
    if not 1 <= options.brokers <= BROKERS_MAX:
        raise CommandError(f"--brokers {options.brokers}: choose 1 to {BROKERS_MAX}")
    if not 0 <= options.compactors <= COMPACTORS_MAX:
        raise CommandError(f"--compactors {options.compactors}: choose 0 to {COMPACTORS_MAX}")
    if not 0 <= options.gcs <= GCS_MAX:
        raise CommandError(f"--gcs {options.gcs}: choose 0 to {GCS_MAX}")
    if options.cluster_ordinal is not None and not 1 <= options.cluster_ordinal <= CLUSTER_ORDINAL_MAX:
        raise CommandError(f"--cluster-ordinal {options.cluster_ordinal}: choose 1 to {CLUSTER_ORDINAL_MAX}")
    if options.wal not in WALS:
        raise CommandError(f"--wal {options.wal}: unknown; use {' or '.join(WALS)}")
    if options.otlp is not None and not options.otlp.startswith(("http://", "https://")):
        raise CommandError(
            f"--otlp {options.otlp}: write the URL of an OTLP over HTTP collector, http://HOST:4318"
        )
    if options.trace_ratio is not None and not 0.0 <= options.trace_ratio <= 1.0:
        raise CommandError(
            f"--trace-ratio {options.trace_ratio}: give the share of requests to trace, 0 to 1"
        )
    if not 1 <= options.kafka_port <= PORT_MAX - BLOCK:
        raise CommandError(
            f"--kafka-port {options.kafka_port}: choose 1 to {PORT_MAX - BLOCK}; the cluster uses"
            f" the {BLOCK} ports from there on"
        )
    if options.host in EVERY_INTERFACE and options.advertise is None:
        raise CommandError(
            f"--host {options.host} listens on every interface, but clients need one name: add"
            " --advertise HOST"
        )
    if options.advertise in EVERY_INTERFACE:
        raise CommandError(f"--advertise {options.advertise} is not a name of this machine")
    _check_listeners(options)


def _check_listeners(options: UpOptions) -> None:
    try:
        read_listeners(listeners_of(options.listeners, options.brokers - 1))
    except ListenerConfigurationError as error:
        raise CommandError(f"--listeners: {error}") from error


def read_listeners_file(path: Path) -> tuple[dict[str, Any], ...]:
    """Read the file of `--listeners`. Relative paths in it are those of the file's directory.

    Raises:
        CommandError: the file is missing or is not a JSON list of objects.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"--listeners {path} cannot be read: {error}") from error
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise CommandError(f"--listeners {path}: write a JSON list of objects, one for each listener")
    directory = path.resolve().parent
    return tuple(
        {
            key: str(directory / value) if key in FILE_KEYS and isinstance(value, str) else value
            for key, value in one.items()
        }
        for one in content
    )


def listeners_of(listeners: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return the listeners of broker `number`: those of broker 0 with their ports plus the number."""
    return [
        {
            **one,
            **{
                key: one[key] + number
                for key in ("port", "advertised_port")
                if type(one.get(key)) is int and one[key]
            },
        }
        for one in listeners
    ]


def object_store_url(options: UpOptions) -> str:
    """Return the absolute URL of the store, for processes in any working directory.

    Raises:
        CommandError: the scheme is unknown.
    """
    url = options.object_store
    if url is None:
        return f"file://{options.directory.objects.resolve()}"
    if url.startswith("file://"):
        path = url.removeprefix("file://")
        if not path:
            raise CommandError("--object-store file://: the URL has no directory; write file://DIR")
        return f"file://{Path(path).resolve()}"
    if url.startswith("s3://") and len(url) > len("s3://"):
        return url
    raise CommandError(f"--object-store {url}: write file://DIR or s3://BUCKET/PREFIX?endpoint=URL")


def advertised_host(options: UpOptions) -> str:
    """Return the host name under which the processes are reached."""
    return options.advertise or options.host


def export_environment(options: UpOptions) -> dict[str, str]:
    """Return `--otlp` and `--trace-ratio` as OpenTelemetry's environment variables."""
    environment: dict[str, str] = {}
    if options.otlp is not None:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = options.otlp
    if options.trace_ratio is not None:
        environment["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        environment["OTEL_TRACES_SAMPLER_ARG"] = str(options.trace_ratio)
    return environment
