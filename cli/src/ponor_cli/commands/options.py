"""Options that several commands share: where the cluster is, and how to print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ponor_cli.output import OutputFormat

DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Data directory of the cluster (default: data).")
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="Brokers of the cluster (HOST:PORT,HOST:PORT...), instead of --data.",
    ),
]
ControllersOption = Annotated[
    str | None,
    typer.Option(
        "--controllers", metavar="HOST:PORT,...", help="Controllers, instead of --data or --bootstrap."
    ),
]
OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="Output format.")]
