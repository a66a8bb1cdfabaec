"""`ponor object reconcile`: run one reconciliation of the garbage collector in this process.

No garbage collector needs to run, and concurrent reconciliations are safe.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Annotated

import typer
from ponor_gc.app import build_rounds
from ponor_gc.deletion_pace import DeletionPace
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.rounds import RETRIED_ERRORS
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict
from ponor_metadata.client.image_reading import followed_image
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import load
from s3stream.stores.open_store import open_stores

from ponor_cli.clients.cluster_address import ClusterAddress, find_cluster
from ponor_cli.clients.image_reader import read_image
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.local.command_runtime import command_runtime
from ponor_cli.local.settings_routing import settings_of
from ponor_cli.output import OutputFormat, human_bytes, print_value

HELP = """Delete objects that the metadata do not reference and never will, and abort abandoned
multipart uploads.

Every collector does this once a day. Objects younger than reconcile_age_ms_min are kept.

\b
Examples:
  ponor object reconcile --dry-run
  ponor object reconcile --set reconcile_age_ms_min=7200000
"""


def reconcile_objects(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be deleted.")] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A garbage collector setting for this round."),
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See HELP."""
    settings = load(GcSettings, settings_of("gc", setting or []))
    if dry_run:
        settings = replace(settings, reconcile_dry_run=True)
    cluster = find_cluster(data, bootstrap)
    report = asyncio.run(one_round(cluster, settings))
    if output is OutputFormat.JSON:
        print_value(report.as_dict(), output)
        return
    print_value(shown(report), output)
    if reason := why_nothing_deleted(report, settings):
        print(reason)


reconcile_objects.__doc__ = HELP


async def one_round(cluster: ClusterAddress, settings: GcSettings) -> ReconcileReport:
    """Run one reconciliation.

    Raises:
        CommandError: controllers or store do not answer, or the store's URL is wrong.
    """
    await read_image(cluster.controllers)  # Raises within seconds if the controllers do not answer.
    try:
        async with command_runtime() as runtime:
            return await _round(runtime, cluster, settings)
    except ValueError as error:
        raise CommandError(str(error)) from error
    except RETRIED_ERRORS as error:
        where = f"object store {cluster.object_store}: " if isinstance(error, ObjectStoreError) else ""
        raise CommandError(
            f"{where}{error}; run the command again; the objects deleted so far stay deleted"
        ) from error


async def _round(runtime: Runtime, cluster: ClusterAddress, settings: GcSettings) -> ReconcileReport:
    pace = DeletionPace(runtime.clock, settings, runtime.telemetry)
    store, multipart = await open_stores(
        cluster.object_store, runtime=runtime, environment=os.environ, policy=pace
    )
    try:
        rounds = build_rounds(
            runtime,
            settings,
            lambda: followed_image(runtime, cluster.controllers),
            store=store,
            multipart=multipart,
        )
        return await rounds.go()
    finally:
        await multipart.close()
        await store.close()


def why_nothing_deleted(report: ReconcileReport, settings: GcSettings) -> str:
    """Return why nothing was deleted although no dry run was requested, or an empty text."""
    if report.refusal:
        return f"nothing is deleted: {report.refusal}"
    if report.is_dry_run and not settings.reconcile_dry_run:
        return (
            "nothing is deleted while a forced recovery waits for `ponor cluster quorum confirm-incarnation`"
        )
    return ""


def shown(report: ReconcileReport) -> dict[str, str]:
    """Return the lines of the report: text by title."""
    lines = {
        verdict.value: f"{number} objects, {human_bytes(report.object_bytes[verdict])}"
        for verdict, number in report.objects.items()
        if verdict is not Verdict.DEAD
    }
    dead, dead_bytes, aborted = report.deleted, report.deleted_bytes, report.aborted
    if report.is_dry_run:
        dead, dead_bytes = report.objects[Verdict.DEAD], report.object_bytes[Verdict.DEAD]
        aborted = report.uploads[Verdict.DEAD]
    lines["would be deleted" if report.is_dry_run else "deleted"] = (
        f"{dead} objects, {human_bytes(dead_bytes)}"
    )
    lines["uploads to be aborted" if report.is_dry_run else "uploads aborted"] = (
        str(aborted) if report.uploads_listed else "unknown: the store cannot list multipart uploads"
    )
    for name, examples in (("dead", report.dead_examples), ("strange", report.strange_examples)):
        if examples:
            lines[f"{name}, such as"] = ", ".join(examples)
    return lines
