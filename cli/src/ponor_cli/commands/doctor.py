"""`ponor doctor storage`: check that an object store gives the guarantees that Ponor needs."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.system_disk import SystemDisk
from rich.progress import Progress, SpinnerColumn, TextColumn
from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stores.probe.bucket_rules import BUCKET_RULES
from s3stream.stores.probe.port_checks import PORT_CHECKS, Probe, remove_everything, run_port_checks
from s3stream.stores.probe.report import Finding, Grade, is_safe, verdict
from s3stream.stores.probe.s3_checks import S3_CHECKS, run_s3_checks
from s3stream.stores.probe.s3_requests import S3Requests
from s3stream.stores.probe.start_check import PROBE_PREFIX
from s3stream.stores.s3 import S3ObjectStore
from s3stream.stores.s3_location import S3Location, parse_s3_location

from ponor_cli.commands.options import OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, console, print_rows, print_value

doctor_app = typer.Typer(
    help="Check the environment of a cluster.", no_args_is_help=True, add_completion=False
)
RACERS_DEFAULT = 16
ROUNDS_DEFAULT = 3
STORAGE_HELP = """Check that an object store gives the guarantees that Ponor needs.

The checks race create-only puts, repeat puts with a lost response, read ranges, list, delete,
upload in parts, send damaged bodies, and read the bucket's expiry rules. They write below
URL/ponor-doctor/ and remove their objects. Exit code 0: safe, 1: unsafe.

\b
Examples:
  ponor doctor storage file:///var/lib/ponor/objects
  AWS_ACCESS_KEY_ID=.. AWS_SECRET_ACCESS_KEY=.. ponor doctor storage 's3://bucket/prefix?endpoint=https://s3.example'
"""


@doctor_app.callback()
def doctor() -> None:
    """Check the environment of a cluster."""


@doctor_app.command("storage", help=STORAGE_HELP)
def storage(
    url: Annotated[str, typer.Argument(metavar="URL", help="file:///DIR or s3://BUCKET/PREFIX?endpoint=URL")],
    racers: Annotated[
        int, typer.Option(min=2, max=128, help="Writers that race for one key.")
    ] = RACERS_DEFAULT,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Number of races.")] = ROUNDS_DEFAULT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See STORAGE_HELP."""
    _refuse_no_store(url)
    findings: list[Finding] = []
    total = len(PORT_CHECKS) + (len(S3_CHECKS) + len(BUCKET_RULES) if url.startswith("s3://") else 0)
    terminal = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task(f"examining {url}", total=total)

        def done(finding: Finding) -> None:
            findings.append(finding)
            progress.update(
                task, advance=1, description=f"{len(findings)}/{total} {finding.check}: {finding.grade}"
            )

        examine(url, os.environ, racers, rounds, done)
    _print(url, findings, output)
    if not is_safe(findings):
        raise typer.Exit(1)


def examine(
    url: str, environment: Mapping[str, str], racers: int, rounds: int, done: Callable[[Finding], None]
) -> None:
    """Run the checks for this kind of store. `done` receives each finding.

    Raises:
        CommandError: the URL names no store, or the store cannot be used.
    """
    prefix = f"{PROBE_PREFIX}/{secrets.token_hex(6)}"
    try:
        location = parse_s3_location(url, environment) if url.startswith("s3://") else None
        asyncio.run(_examine_port(url, location, Probe([], prefix, racers, rounds), done))
    except ValueError as error:
        raise CommandError(str(error)) from error
    except ObjectStoreError as error:
        raise CommandError(f"{url} cannot be used{likely_cause(location)}: {error}") from error


def _refuse_no_store(url: str) -> None:
    path = url.removeprefix("file://") if url.startswith("file://") else ""
    if not path and not url.startswith("s3://"):
        raise CommandError(f"{url}: write file:///DIR or s3://BUCKET/PREFIX?endpoint=URL")


def likely_cause(location: S3Location | None) -> str:
    """Return the likely cause of a store that refuses everything, or an empty text."""
    if location is None or location.access_key_id:
        return ""
    return " (there is no AWS_ACCESS_KEY_ID in the environment, and this machine seems to have no role)"


async def _examine_port(
    url: str, location: S3Location | None, probe: Probe, done: Callable[[Finding], None]
) -> None:
    stores = [await _open(url, location) for _ in range(2)]
    probe = Probe(stores, probe.prefix, probe.racers, probe.rounds)
    try:
        await stores[0].put(
            probe.key("first"), [b"x"]
        )  # Without credentials, bucket or rights this put fails before the checks, which would all fail.
        await run_port_checks(probe, done)
        if location is not None:
            await asyncio.to_thread(_examine_s3, location, probe.prefix, done)
    finally:
        with suppress(ObjectStoreError):
            await remove_everything(stores[0], probe.prefix)
        if location is None:
            _remove_directories(_directory(url) / "objects" / probe.prefix)
        for store in stores:
            await store.close()


def _examine_s3(location: S3Location, prefix: str, done: Callable[[Finding], None]) -> None:
    if not location.access_key_id:
        names = ", ".join(name for name, _ in (*S3_CHECKS, *BUCKET_RULES))
        done(
            Finding(
                names, Grade.SKIPPED, "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
            )
        )
        return
    requests = S3Requests(location)
    run_s3_checks(requests, requests.key(prefix), (*S3_CHECKS, *BUCKET_RULES), done)


async def _open(url: str, location: S3Location | None) -> ObjectStore:
    if location is not None:
        return S3ObjectStore(location)
    return await DirectoryObjectStore.open(SystemDisk(), _directory(url))


def _remove_directories(directory: Path) -> None:
    """Remove the directories of deleted keys, which the directory store keeps."""
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        directory.parent.rmdir()


def _directory(url: str) -> Path:
    return Path(url.removeprefix("file://")).resolve()


def _print(url: str, findings: list[Finding], output: OutputFormat) -> None:
    rows = [{**asdict(finding), "grade": str(finding.grade)} for finding in findings]
    if output is OutputFormat.JSON:
        print_value(
            {"url": url, "safe": is_safe(findings), "verdict": verdict(url, findings), "checks": rows}, output
        )
        return
    print_rows(rows, ["check", "grade", "detail"], output)
    print()
    print(verdict(url, findings))
