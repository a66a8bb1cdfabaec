"""`ponor up`: options of a local cluster, which `supervisor.run` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from ponor_runtime.identity import ClusterOrdinal

from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.settings_routing import route_settings
from ponor_cli.supervisor.run import run_up
from ponor_cli.supervisor.up_options import UpOptions, read_listeners_file

up_app = typer.Typer(add_completion=False)
DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory of the cluster.")]
HostOption = Annotated[
    str,
    typer.Option(metavar="HOST", help="Address on which all processes listen; 0.0.0.0 for every interface."),
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Host name or address that clients and other nodes use to reach the processes; default: --host.",
    ),
]
OtlpOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Send traces and metrics to this OpenTelemetry collector (OTLP over HTTP)."
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="file://DIR or s3://BUCKET/PREFIX?endpoint=URL; default: inside the data directory.",
    ),
]
ShareStoreOption = Annotated[
    bool,
    typer.Option(
        "--share-store",
        help="Accept an object store that contains other clusters; needed only at the first start.",
    ),
]
ListenersOption = Annotated[
    Path | None,
    typer.Option(
        "--listeners",
        metavar="FILE",
        help="JSON list of further listeners with TLS or SASL; broker k adds k to their ports.",
    ),
]
OrdinalOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="1 to 16383, part of all ids, unique among clusters that share a store; default: chosen at the"
        " first start.",
    ),
]
DATA_DEFAULT = Path("data")
UP_HELP = """Run a cluster on this machine until Ctrl-C.

\b
Examples:
  ponor up
  ponor up --data /var/lib/ponor --kafka-port 9092 --gcs 2 --set upload_interval_ms=2000
  ponor up --brokers 3 --wal object
  ponor up --host 0.0.0.0 --advertise kafka.example.com
  ponor up --object-store 's3://bucket/prefix?endpoint=http://127.0.0.1:9000'
  ponor up --object-store file:///srv/objects --share-store --cluster-ordinal 7
  ponor up --listeners listeners.json
  ponor up --otlp http://127.0.0.1:4318 --trace-ratio 0.1
"""


@up_app.command(help=UP_HELP)
def up(
    data: DataOption = DATA_DEFAULT,
    controllers: Annotated[int, typer.Option(help="Number of controllers.")] = 1,
    brokers: Annotated[
        int, typer.Option(help="Number of brokers; broker k listens on the Kafka port + k.")
    ] = 1,
    compactors: Annotated[int, typer.Option(help="Number of compactors; 0 disables compaction.")] = 1,
    gcs: Annotated[int, typer.Option(help="Number of garbage collectors.")] = 1,
    kafka_port: Annotated[
        int, typer.Option(help="Kafka port of broker 0; all other ports are derived from it.")
    ] = 9092,
    host: HostOption = "127.0.0.1",
    advertise: AdvertiseOption = None,
    object_store: StoreOption = None,
    wal: Annotated[str, typer.Option(help="Write-ahead log: file or object.")] = "file",
    share_store: ShareStoreOption = False,
    cluster_ordinal: OrdinalOption = None,
    listeners: ListenersOption = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="File that `ponor up` writes when clients can produce.")
    ] = None,
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Do not restart failed processes.")
    ] = False,
    otlp: OtlpOption = None,
    trace_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Share of requests that are traced, 0 to 1; default 0.01, or OTEL_TRACES_SAMPLER.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of any service; repeatable."),
    ] = None,
) -> None:
    """See UP_HELP."""
    options = UpOptions(
        directory=ClusterDirectory(data),
        controllers=controllers,
        brokers=brokers,
        compactors=compactors,
        gcs=gcs,
        host=host,
        advertise=advertise,
        kafka_port=kafka_port,
        object_store=object_store,
        wal=wal,
        otlp=otlp,
        trace_ratio=trace_ratio,
        cluster_ordinal=None if cluster_ordinal is None else ClusterOrdinal(cluster_ordinal),
        share_store=share_store,
        listeners=() if listeners is None else read_listeners_file(listeners),
        settings=route_settings(setting or []),
    )
    run_up(options, restart=not no_restart, ready_file=ready_file)
