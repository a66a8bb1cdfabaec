"""The part of a plan that concerns compaction: workers, sizes, cold readers, leases.

Its random numbers are separate from the rest of the plan.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from ponor_compactor.settings import CompactorSettings
from ponor_controller.settings import CompactionSettings, SnapshotLeaseSettings
from s3stream.settings import KIB, MIB

COMPACTORS: Final = (0, 1, 2, 2)
"""Numbers of compactors that a seed with a bucket chooses from."""
RECONCILES_SHARE: Final = 0.35
"""A reconciliation makes 256 listings, which is expensive compared with the rest of a run."""
KEYED_SHARE: Final = 0.25
REQUESTS_PER_PART: Final = 3
"""One request for the part, one for its share of the reads, one for repeats after lost answers."""
NARROW_SHARE: Final = 0.15
"""Share of the seeds with compactors in which the memory budget is too small for some blocks."""
NARROW_BYTES: Final = (6 * KIB, 12 * KIB)
WRONG_COMPACTORS_SHARE: Final = 0.25
"""Share of the seeds with compactors in which a client commits wrong plans."""
WEARS_EARLY_SHARE: Final = 0.25
"""Share of the seeds with compactors in which a minimal trim causes a rewrite of set objects.

In these seeds stale committers trim within blocks. Some objects then have no dead block, so a task ends as
settled.
"""
NEVER_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The part of a seed's plan that concerns compaction.

    Attributes:
        compactors: number of compactors; 0 if objects are in a directory.
        wrong_compactors: number of clients that commit wrong plans.
        part_size_bytes_min: the bucket's minimum part size.
        readers: number of cold readers under leases.
        keyed: one topic is compacted by key.
        reconcile_interval_ms: time between two comparisons of the bucket with the metadata.
        snapshots: limits of leases.
    """

    compactors: int
    wrong_compactors: int
    part_size_bytes_min: int
    readers: int
    keyed: bool
    reconcile_interval_ms: int
    snapshots: SnapshotLeaseSettings
    controller: CompactionSettings
    compactor: CompactorSettings

    @property
    def is_narrow(self) -> bool:
        """Whether some blocks do not fit into a compactor's memory."""
        return self.compactors > 0 and self.compactor.compaction_budget_bytes in NARROW_BYTES

    @property
    def wears_early(self) -> bool:
        """Whether set objects are rewritten after a minimal trim."""
        return self.controller.compaction_trimmed_percent == 1

    @property
    def reconciles(self) -> bool:
        """Whether the bucket is reconciled with the metadata within the run."""
        return self.reconcile_interval_ms < DAY_MS


def draw_compaction(seed: int, *, has_bucket: bool) -> CompactionPlan:
    """Draw the plan of a seed."""
    chance = random.Random(f"compaction {seed}")
    compactors = chance.choice(COMPACTORS) if has_bucket else 0
    part_size_bytes_min = chance.choice((1, 1 * KIB, 4 * KIB))
    reconciles = compactors > 0 and chance.random() < RECONCILES_SHARE
    interval_ms = chance.choice((5_000, 15_000)) if reconciles else DAY_MS
    readers = chance.randint(0, 1) if has_bucket else 0
    keyed = chance.random() < KEYED_SHARE
    snapshots = SnapshotLeaseSettings(
        snapshot_lease_age_ms_max=chance.choice((3_000, 60_000)),
        snapshot_pinned_bytes_max=chance.choice((100 * KIB, 1024 * MIB)),
    )
    controller = _controller_settings(chance)
    compactor = _compactor_settings(chance, part_size_bytes_min, reconciles=interval_ms < DAY_MS)
    later = random.Random(f"narrow memory {seed}")  # drawn last, so that other seeds do not change
    wrong_compactors = int(compactors > 0 and later.random() < WRONG_COMPACTORS_SHARE)
    if compactors and later.random() < NARROW_SHARE:
        compactor = replace(compactor, compaction_budget_bytes=later.choice(NARROW_BYTES))
    if compactors and random.Random(f"early wear {seed}").random() < WEARS_EARLY_SHARE:
        controller = replace(controller, compaction_trimmed_percent=1, compaction_force_split_ms=NEVER_MS)
    return CompactionPlan(
        compactors=compactors,
        wrong_compactors=wrong_compactors,
        part_size_bytes_min=part_size_bytes_min,
        readers=readers,
        keyed=keyed,
        reconcile_interval_ms=interval_ms,
        snapshots=snapshots,
        controller=controller,
        compactor=_with_ids_that_outlive_a_task(compactor, controller.compaction_source_bytes_max),
    )


def _with_ids_that_outlive_a_task(compactor: CompactorSettings, source_bytes_max: int) -> CompactorSettings:
    """Extend the lease of prepared ids to the duration of the largest task.

    With a shorter lease the worker would never commit that task, and compaction would never end.
    """
    requests = REQUESTS_PER_PART * source_bytes_max // compactor.compactor_part_size_bytes
    needed_ms = 1_000 * requests // compactor.compactor_requests_per_s_max
    return replace(compactor, compactor_prepared_ttl_ms=max(compactor.compactor_prepared_ttl_ms, needed_ms))


def _controller_settings(chance: random.Random) -> CompactionSettings:
    return CompactionSettings(
        compaction_tasks_max=chance.choice((1, 4)),
        compaction_attempts_max=chance.choice((2, 5)),
        compaction_source_bytes_max=chance.choice((64, 512)) * KIB,
        compaction_sources_max=chance.choice((2, 4, 20)),
        compaction_object_bytes_max=chance.choice((32, 256)) * KIB,
        compaction_settle_ms=chance.choice((0, 0, 300)),
        compaction_patience_ms=chance.choice((100, 1_000)),
        compaction_force_split_ms=chance.choice((1_500, 4_000, NEVER_MS)),
        compaction_fan_in=chance.choice((2, 3)),
        compaction_survey_interval_ms=chance.choice((100, 500)),
    )


def _compactor_settings(
    chance: random.Random, part_size_bytes_min: int, *, reconciles: bool
) -> CompactorSettings:
    """Draw the settings of a compactor.

    Prepared ids have short leases only if the bucket is reconciled: only a reconciliation finds
    objects that a paused worker puts after its lease.
    """
    return CompactorSettings(
        compaction_budget_bytes=chance.choice((16, 64)) * KIB,
        compactor_source_bytes_max=1024 * KIB,
        compactor_split_size_bytes=chance.choice((3, 8, 64)) * KIB,
        compactor_part_size_bytes=max(part_size_bytes_min, chance.choice((2, 8)) * KIB),
        compactor_lease_ttl_ms=chance.choice((400, 1_500)),
        compactor_prepared_ttl_ms=chance.choice((2_000, 12_000)) if reconciles else 20_000,
        compactor_poll_interval_ms_min=50,
        compactor_poll_interval_ms_max=chance.choice((600, 1_500)),
        compactor_requests_per_s_max=chance.choice((20, 60, 200)),
    )
