"""What `ponor object reconcile` says when nothing may be deleted."""

from __future__ import annotations

from ponor_cli.commands.object_reconcile import why_only_looked
from ponor_gc.reconcile_report import ReconcileReport
from ponor_gc.settings import GcSettings


def test_the_reason_is_the_collectors_own() -> None:
    """A foreign marker, or a log that is older than the store, was called a forced recovery that waits to be confirmed."""
    refused = ReconcileReport(only_looked=True, refusal="the store says that it belongs to another cluster")
    for settings in (GcSettings(), GcSettings(reconcile_dry_run=True)):
        assert why_only_looked(refused, settings).endswith("it belongs to another cluster")
    unconfirmed = ReconcileReport(only_looked=True)
    assert "confirm-incarnation" in why_only_looked(unconfirmed, GcSettings())
    assert not why_only_looked(unconfirmed, GcSettings(reconcile_dry_run=True))
    assert not why_only_looked(ReconcileReport(), GcSettings())
