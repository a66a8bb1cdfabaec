"""`ponor certificates`: an authority and certificates for the listeners and clients of a cluster."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ponor_cli.commands.options import OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.local.certificates import (
    AUTHORITY_DAYS,
    create_authority,
    issue_certificate,
    read_certificate,
)
from ponor_cli.output import OutputFormat, print_done

AUTHORITY = "ca"
DAYS_MAX = AUTHORITY_DAYS
DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of the files.")]
HostsOption = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="Host name or address of a server; repeatable."),
]
DaysOption = Annotated[int, typer.Option("--days", help="Validity of the certificate.", min=1, max=DAYS_MAX)]

certificates_app = typer.Typer(
    help="Create certificates for TLS.", no_args_is_help=True, add_completion=False
)

INIT_HELP = """Create a certificate authority, and a certificate for the brokers.

Writes ca.pem, ca.key, broker.pem and broker.key. Clients trust ca.pem. Keep ca.key away from the brokers.

\b
Examples:
  ponor certificates init tls
  ponor certificates init tls --host kafka.example.com --host 10.0.0.7
"""
ISSUE_HELP = """Issue another certificate with the authority that `ponor certificates init` created.

A certificate without --host is one of a client: its principal is User:CN=NAME. A broker loads a changed
certificate without a restart, so a certificate is renewed by issuing it again with --replace.

\b
Examples:
  ponor certificates issue tls alice
  ponor certificates issue tls broker --host kafka.example.com --replace
"""


@certificates_app.command("init", help=INIT_HELP)
def certificates_init(
    directory: DirectoryArgument,
    host: HostsOption = None,
    days: DaysOption = 365,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See INIT_HELP."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (AUTHORITY, "broker"):
        if (directory / f"{name}.key").exists() or (directory / f"{name}.pem").exists():
            raise CommandError(
                f"{directory} contains certificates already; `ponor certificates issue {directory} NAME`"
                " issues further ones"
            )
    now = _now()
    authority = create_authority("Ponor cluster CA", now)
    hosts = host or ["localhost", "127.0.0.1"]
    broker = issue_certificate(authority, "broker", hosts, now, days=days)
    authority.write(directory, AUTHORITY)
    broker.write(directory, "broker")
    files = [f"{directory / name}{suffix}" for name in (AUTHORITY, "broker") for suffix in (".pem", ".key")]
    print_done(f"wrote {', '.join(files)}", {"files": files, "hosts": hosts}, output)


@certificates_app.command("issue", help=ISSUE_HELP)
def certificates_issue(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Common name, and name of the files.")],
    host: HostsOption = None,
    days: DaysOption = 365,
    replace: Annotated[bool, typer.Option("--replace", help="Replace existing files.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See ISSUE_HELP."""
    if not name or name == AUTHORITY or Path(name).name != name or len(name) > 64:
        raise CommandError(f"{name!r} cannot be the name of a certificate: use 1 to 64 letters and digits")
    try:
        authority = read_certificate(directory, AUTHORITY)
    except FileNotFoundError as error:
        raise CommandError(
            f"{error.filename} does not exist; `ponor certificates init {directory}` creates the authority"
        ) from error
    except ValueError as error:
        raise CommandError(f"the authority in {directory} cannot be used: {error}") from error
    certificate = issue_certificate(authority, name, host or [], _now(), days=days)
    try:
        certificate.write(directory, name, replace=replace)
    except FileExistsError as error:
        raise CommandError(f"{error.filename} exists; add --replace to renew the certificate") from error
    files = [f"{directory / name}{suffix}" for suffix in (".pem", ".key")]
    print_done(f"wrote {' and '.join(files)}", {"files": files, "hosts": host or []}, output)


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)
