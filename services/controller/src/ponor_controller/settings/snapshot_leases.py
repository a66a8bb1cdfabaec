"""Settings of snapshot leases.

What lives here: one frozen dataclass, a part of the controller's settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

GIB = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotLeaseSettings:
    """What an operator may choose; see each field's `doc`."""

    snapshot_lease_age_ms_max: int = setting(
        86_400_000,
        minimum=1,
        maximum=7 * 86_400_000,
        unit="ms",
        doc="Age at which a snapshot's lease ends, however often it is renewed.",
    )
    snapshot_leases_max: int = setting(
        1_000, minimum=1, maximum=100_000, unit="leases", doc="Leases of snapshots at once."
    )
    snapshot_pinned_bytes_max: int = setting(
        1024 * GIB,
        minimum=0,
        maximum=1024 * 1024 * GIB,
        unit="bytes",
        doc="Destroyed objects that leases may keep in the store; above this the oldest lease is broken.",
    )
