"""Settings of the garbage collector. How old garbage must be is the controller's setting `destroy_delay_ms`."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting


@dataclass(frozen=True, slots=True)
class GcSettings:
    """What an operator may choose; see each field's `doc`."""

    claim_objects_max: int = setting(
        500, minimum=1, maximum=1_000, unit="objects", doc="Objects of one claim."
    )
    claim_ttl_ms: int = setting(
        120_000,
        minimum=1_000,
        maximum=600_000,
        unit="ms",
        doc="Life of a claim: how long deleting its objects may take.",
    )
    poll_interval_ms_min: int = setting(
        500,
        minimum=10,
        maximum=60_000,
        unit="ms",
        doc="Pause after a sweep that found something, and not all it could take.",
    )
    poll_interval_ms_max: int = setting(
        5_000,
        minimum=10,
        maximum=600_000,
        unit="ms",
        doc="Longest pause: while nothing is found, each is twice the one before.",
    )
    wal_leftovers_interval_ms: int = setting(
        3_600_000,
        minimum=1_000,
        maximum=30 * 86_400_000,
        unit="ms",
        doc="Pause before each look for slots that arrived in write-ahead logs after they were closed. A look lists these logs and reads the metadata anew.",
    )
    wal_leftovers_keys_max: int = setting(
        100_000,
        minimum=1_000,
        maximum=100_000_000,
        unit="keys",
        doc="Keys of one look, a thousand of them a request; the next look goes on from there.",
    )
    delete_keys_max: int = setting(
        500, minimum=1, maximum=1_000, unit="keys", doc="Keys of one call that deletes."
    )
    delete_keys_per_s_min: int = setting(
        10,
        minimum=1,
        maximum=1_000_000,
        unit="keys/s",
        doc="How slow deleting may become when the store asks to slow down.",
    )
    delete_keys_per_s_max: int = setting(
        3_000,
        minimum=1,
        maximum=1_000_000,
        unit="keys/s",
        doc="How fast this collector deletes at most. It rises by 50 with every call that the store takes, and halves when it asks to slow down.",
    )
    reconcile_interval_ms: int = setting(
        86_400_000,
        minimum=1_000,
        maximum=365 * 86_400_000,
        unit="ms",
        doc="Time between two comparisons of everything in the store with the metadata, a fifth more or less; the first comes within one such time.",
    )
    reconcile_age_ms_min: int = setting(
        2 * 86_400_000 + 600_000,
        minimum=0,
        maximum=365 * 86_400_000,
        unit="ms",
        doc="Age, by the store, below which nothing that the metadata do not know is deleted; keep it at or above twice the controllers' prepared_ttl_ms_max plus their destroy_delay_ms.",
    )
    reconcile_keys_per_s: int = setting(
        2_000,
        minimum=1,
        maximum=1_000_000,
        unit="keys/s",
        doc="How fast a comparison lists; a request lists a thousand keys.",
    )
    reconcile_dry_run: bool = setting(
        False, doc="Say what a comparison would delete and abort, and delete nothing."
    )
    wal_leftovers_dry_run: bool = setting(False, doc="Say what a look would delete, and delete nothing.")
