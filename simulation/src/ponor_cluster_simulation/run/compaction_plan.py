"""What a seed decides about compaction: who compacts, which sizes make tasks happen within seconds, who reads under leases.

What lives here: the part of `plan` that is about objects once they are uploaded. It has dice of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from ponor_compactor.settings import CompactorSettings
from ponor_controller.settings import CompactionSettings, SnapshotLeaseSettings
from s3stream.settings import KIB, MIB

COMPACTORS: Final = (0, 1, 2, 2)
"""What a seed with a bucket chooses from."""
RECONCILES_SHARE: Final = 0.35
"""A comparison asks for 256 listings, which is much beside all else that a run does."""
KEYED_SHARE: Final = 0.25
REQUESTS_PER_PART: Final = 3
"""A part, its share of the reads, and as much again for answers that were lost."""
NARROW_SHARE: Final = 0.15
"""Of seeds with compactors: a budget beside which some blocks do not fit."""
NARROW_BYTES: Final = (6 * KIB, 12 * KIB)
WRONG_COMPACTORS_SHARE: Final = 0.25
"""Of seeds with compactors."""
WEARS_EARLY_SHARE: Final = 0.25
"""Of seeds with compactors: a set object is written again for hardly anything that is trimmed of it. Rivals trim within blocks there, so that some have nothing that could be left out: a task is settled."""
NEVER_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """See the module's docstring.

    Attributes:
        compactors: how many; none where objects are in a directory.
        wrong_compactors: workers that err.
        part_size_bytes_min: of the bucket.
        readers: cold readers under leases.
        keyed: a topic is compacted by its keys.
        reconcile_interval_ms: between two comparisons of the bucket with the metadata.
        snapshots: how long leases may live, and what they may keep.
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
        """Whether hardly anything of a set object must be trimmed for it to be written again."""
        return self.controller.compaction_worn_percent == 1

    @property
    def reconciles(self) -> bool:
        """Whether the bucket is compared with the metadata within the run."""
        return self.reconcile_interval_ms < DAY_MS


def draw_compaction(seed: int, *, has_bucket: bool) -> CompactionPlan:
    """The plan of a seed."""
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
    later = random.Random(f"narrow memory {seed}")  # came later: every other seed stays what it was
    wrong_compactors = int(compactors > 0 and later.random() < WRONG_COMPACTORS_SHARE)
    if compactors and later.random() < NARROW_SHARE:
        compactor = replace(compactor, compaction_budget_bytes=later.choice(NARROW_BYTES))
    if compactors and random.Random(f"early wear {seed}").random() < WEARS_EARLY_SHARE:
        controller = replace(controller, compaction_worn_percent=1, compaction_force_split_ms=NEVER_MS)
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
    """With shorter lives a worker at its pace of requests never commits its largest task, and compaction never rests."""
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
    """Ids live shortly only where the bucket is compared with the metadata: what a worker that stood still puts after its lease is nobody's else."""
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
