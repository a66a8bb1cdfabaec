"""The reason that `ponor object reconcile` prints when nothing is deleted."""

from __future__ import annotations

from ponor_cli.commands.object_reconcile import why_nothing_deleted
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.settings import GcSettings


def test_why_nothing_deleted_returns_the_collectors_reason() -> None:
    """A foreign marker, or a log that is older than the store, was called a forced recovery that waits to be
    confirmed.
    """
    refused = ReconcileReport(is_dry_run=True, refusal="the namespace belongs to another cluster")
    for settings in (GcSettings(), GcSettings(reconcile_dry_run=True)):
        assert why_nothing_deleted(refused, settings).endswith("the namespace belongs to another cluster")
    unconfirmed = ReconcileReport(is_dry_run=True)
    assert "confirm-incarnation" in why_nothing_deleted(unconfirmed, GcSettings())
    assert not why_nothing_deleted(unconfirmed, GcSettings(reconcile_dry_run=True))
    assert not why_nothing_deleted(ReconcileReport(), GcSettings())
