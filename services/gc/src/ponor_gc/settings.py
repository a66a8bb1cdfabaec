"""Settings of the garbage collector. The controller's setting `destroy_delay_ms` defines the minimum age of
garbage.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting


@dataclass(frozen=True, slots=True)
class GcSettings:
    """Settings of one collector process; each field's `doc` gives its meaning."""

    claim_objects_max: int = setting(
        500, within=(1, 1_000), unit="objects", doc="Maximum objects in one claim."
    )
    claim_ttl_ms: int = setting(
        120_000, within=(1_000, 600_000), doc="Duration of a claim, within which its objects must be deleted."
    )
    poll_interval_ms_min: int = setting(
        500,
        within=(10, 60_000),
        doc="Pause after a sweep that deleted objects, but fewer than `claim_objects_max`.",
    )
    poll_interval_ms_max: int = setting(
        5_000, within=(10, 600_000), doc="Longest pause. Pauses double while sweeps find nothing."
    )
    wal_leftovers_interval_ms: int = setting(
        3_600_000,
        within=(1_000, 30 * 86_400_000),
        doc="Pause before each scan for slots that arrived in write-ahead logs after they were closed. A"
        " scan lists these logs and reads the metadata.",
    )
    wal_leftovers_keys_max: int = setting(
        100_000,
        within=(1_000, 100_000_000),
        unit="keys",
        doc="Maximum keys that one scan lists, a thousand per request; the next scan continues after them.",
    )
    delete_keys_max: int = setting(
        500, within=(1, 1_000), unit="keys", doc="Maximum keys in one delete call."
    )
    delete_keys_per_s_min: int = setting(
        10,
        within=(1, 1_000_000),
        unit="keys/s",
        doc="Lowest deletion rate after the store asks to slow down.",
    )
    delete_keys_per_s_max: int = setting(
        3_000,
        within=(1, 1_000_000),
        unit="keys/s",
        doc="Highest deletion rate. The rate rises by 50 with every successful call and halves when the"
        " store asks to slow down.",
    )
    reconcile_interval_ms: int = setting(
        86_400_000,
        within=(1_000, 365 * 86_400_000),
        doc="Interval of reconciliation rounds, plus or minus a fifth; the first round runs within one"
        " interval.",
    )
    reconcile_age_ms_min: int = setting(
        2 * 86_400_000 + 600_000,
        within=(0, 365 * 86_400_000),
        doc="Minimum age, by the store's clock, of objects that reconciliation deletes; keep it at or above"
        " twice the controllers' prepared_ttl_ms_max plus their destroy_delay_ms.",
    )
    reconcile_keys_per_s: int = setting(
        2_000,
        within=(1, 1_000_000),
        unit="keys/s",
        doc="Listing rate of reconciliation; a request lists a thousand keys.",
    )
    reconcile_dry_run: bool = setting(
        False, doc="Only report what reconciliation would delete, and which multipart uploads it would abort."
    )
    wal_leftovers_dry_run: bool = setting(
        False, doc="Only report what a scan of write-ahead logs would delete."
    )
