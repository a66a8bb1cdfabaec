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
