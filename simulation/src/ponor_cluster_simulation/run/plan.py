"""A run's plan: everything that a seed decides before the run begins.

A plan contains the numbers of services and clients, small values for every bound, and the schedule of faults.
A run depends on the plan and the code only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ponor_broker.groups.settings import GroupSettings
from ponor_broker.settings import BrokerSettings
from ponor_controller.settings import BalanceSettings, ControllerSettings
from ponor_gc.settings import GcSettings
from ponor_metadata.nouns.nodes import WalKind
from ponor_simulation.object_store import LISTING_PAGE_KEYS
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.retrying import RetrySettings

from ponor_cluster_simulation.cluster.sim_cluster import (
    ClusterSettings,
    broker_names,
    compactor_names,
    controller_names,
)
from ponor_cluster_simulation.faults.fault import FaultKind
from ponor_cluster_simulation.faults.swarm import Machines, Schedule, draw_schedule
from ponor_cluster_simulation.run.compaction_plan import CompactionPlan, draw_compaction
from ponor_cluster_simulation.run.group_plan import (
    NO_GROUP,
    NO_SHARE_GROUP,
    NO_STREAMS_GROUP,
    GroupPlan,
    SharePlan,
    StreamsPlan,
    draw_group,
    draw_share_group,
    draw_streams_group,
    with_group_faults,
    with_share_settings,
    with_short_sessions,
    with_streams_settings,
)
from ponor_cluster_simulation.run.transaction_plan import (
    NO_TRANSACTIONS,
    TransactionPlan,
    draw_transactions,
    with_small_logs,
    with_transaction_faults,
)

CONTROLLERS: Final = (1, 3, 3)
"""Numbers of controllers that a seed chooses from."""
BROKERS: Final = (1, 1, 2, 3, 3)
"""Numbers of brokers that a seed with a bucket chooses from."""
COORDINATOR_PARTITIONS: Final = 2
WALS: Final = (WalKind.FILE, WalKind.OBJECT, WalKind.OBJECT)
BUCKET_SHARE: Final = 0.8
STALE_COMMITTERS_SHARE: Final = 0.6
STILL_SHARE: Final = 0.5
"""Share of the seeds in which the balancer makes no move."""
CONTROLLER_READERS_SHARE: Final = 0.3
"""Share of the seeds with three controllers."""
BROKER_READERS_SHARE: Final = 0.5
"""Share of the seeds with several brokers."""
CUTS_OFF_MAX: Final = 3
"""Maximum number of CUT_OFF faults that seeds with broker readers add."""
STALE_LEADERS_MAX: Final = 2
"""Maximum number of STALE_LEADER faults that seeds with controller readers add."""
LONG_PAUSES_SHARE: Final = 0.25
LONG_PAUSES_MAX: Final = 2
PAUSES_IN_TASKS_SHARE: Final = 0.35
"""Share of the seeds with compactors in which compactors are paused during tasks."""
PAUSES_IN_TASKS_MAX: Final = 3
OPEN_FAULTS_SHARE: Final = 0.35
OPEN_FAULTS_MAX: Final = 3
"""Maximum number of OPEN faults of each kind."""
SMALL_PAGES_SHARE: Final = 0.3
"""Share of the seeds in which a listing has several pages, so that objects change between pages."""


@dataclass(frozen=True, slots=True)
class OptionalClients:
    """Which optional clients a seed may have. Their random numbers are separate, so that a seed without them
    is the same as before they existed.

    Attributes:
        transactions: clients of transactions, in a share of the seeds.
        group: members of a consumer group, in a share of the seeds.
        share_group: members of a share group, in a share of the seeds.
        streams_group: members of a streams group, in a share of the seeds.
    """

    transactions: bool = True
    group: bool = False
    share_group: bool = False
    streams_group: bool = False


DEFAULT_CLIENTS: Final = OptionalClients()
NO_CLIENTS: Final = OptionalClients(transactions=False)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a seed.

    Attributes:
        has_bucket: a bucket stores objects; otherwise objects are in a directory of the broker's machine, on
            which the collector also runs.
        brokers: number of brokers; 1 without a bucket.
        wal: where brokers store records that are not uploaded yet.
        stale_committers: nodes that take streams from each other; they need a bucket.
        groups: consumer groups that commit offsets.
        repeaters: clients that repeat operations on purpose.
        controller_readers: one per controller, or none.
        broker_readers: one per broker, or none.
        mover_pause_s_max: maximum pause of the client that moves partitions; None for no such client.
        pause_s_max: maximum pause between requests of a producer or consumer.
        listing_page_keys: keys in one page of the bucket's listings.
    """

    seed: int
    controllers: int
    has_bucket: bool
    brokers: int
    wal: WalKind
    partitions: int
    producers: int
    consumers: int
    stale_committers: int
    groups: int
    repeaters: int
    controller_readers: int
    broker_readers: int
    mover_pause_s_max: float | None
    pause_s_max: float
    compaction: CompactionPlan
    listing_page_keys: int
    settings: ClusterSettings
    schedule: Schedule
    transactions: TransactionPlan = NO_TRANSACTIONS
    group: GroupPlan = NO_GROUP
    share_group: SharePlan = NO_SHARE_GROUP
    streams_group: StreamsPlan = NO_STREAMS_GROUP

    def only(self, numbers: Sequence[int]) -> RunPlan:
        """The same plan with some of its faults."""
        return replace(self, schedule=self.schedule.only(numbers))


def draw_plan(seed: int, clients: OptionalClients = DEFAULT_CLIENTS) -> RunPlan:
    """Draw the plan of a seed, with those optional clients that `clients` allows."""
    plan = _draw_plan(seed)
    machines = Machines((), broker_names(plan.brokers), (), (), has_bucket=False)
    transactions = draw_transactions(seed) if clients.transactions else NO_TRANSACTIONS
    if transactions.clients:
        plan = replace(
            plan,
            settings=replace(plan.settings, broker=with_small_logs(seed, plan.settings.broker)),
            schedule=with_transaction_faults(seed, plan.schedule, machines, transactions),
            transactions=transactions,
        )
    group = draw_group(seed) if clients.group else NO_GROUP
    if group.clients:
        plan = replace(
            plan,
            settings=replace(plan.settings, broker=with_short_sessions(plan.settings.broker)),
            schedule=with_group_faults(seed, plan.schedule, machines, group.clients),
            group=group,
        )
    share_group = draw_share_group(seed) if clients.share_group else NO_SHARE_GROUP
    if share_group.clients:
        broker = with_share_settings(plan.settings.broker, share_group, COORDINATOR_PARTITIONS)
        plan = replace(
            plan,
            settings=replace(plan.settings, broker=broker),
            schedule=with_group_faults(
                seed, plan.schedule, machines, share_group.clients, "members of a share group"
            ),
            share_group=share_group,
        )
    streams_group = draw_streams_group(seed) if clients.streams_group else NO_STREAMS_GROUP
    if streams_group.clients:
        plan = replace(
            plan,
            settings=replace(plan.settings, broker=with_streams_settings(plan.settings.broker)),
            schedule=with_group_faults(
                seed, plan.schedule, machines, streams_group.clients, "members of a streams group"
            ),
            streams_group=streams_group,
        )
    return plan


def _draw_plan(seed: int) -> RunPlan:
    """Draw everything except the optional clients."""
    chance = random.Random(f"plan {seed}")
    controllers = chance.choice(CONTROLLERS)
    has_bucket = chance.random() < BUCKET_SHARE
    brokers = chance.choice(BROKERS) if has_bucket else 1
    wal = chance.choice(WALS) if has_bucket else WalKind.FILE
    producers, consumers = chance.randint(1, 3), chance.randint(1, 2)
    stale_committers = 2 if has_bucket and chance.random() < STALE_COMMITTERS_SHARE else 0
    repeaters = chance.randint(0, 1)
    compaction = draw_compaction(seed, has_bucket=has_bucket)
    machines = Machines(
        controllers=controller_names(controllers),
        brokers=broker_names(brokers),
        gcs=("gc",) if has_bucket else (),
        clients=tuple(f"producer-{number}" for number in range(producers))
        + tuple(f"consumer-{number}" for number in range(consumers)),
        has_bucket=has_bucket,
        takes_over=brokers > 1 and wal is WalKind.OBJECT,
        compactors=compactor_names(compaction.compactors),
    )
    has_controller_readers = (
        controllers > 1 and random.Random(f"stays {seed}").random() < CONTROLLER_READERS_SHARE
    )
    has_readers = brokers > 1 and random.Random(f"asks brokers {seed}").random() < BROKER_READERS_SHARE
    return RunPlan(
        seed=seed,
        controllers=controllers,
        has_bucket=has_bucket,
        brokers=brokers,
        wal=wal,
        partitions=chance.randint(1, 4),
        producers=producers,
        consumers=consumers,
        stale_committers=stale_committers,
        groups=chance.randint(0, 2),
        repeaters=repeaters,
        controller_readers=controllers if has_controller_readers else 0,
        broker_readers=brokers if has_readers else 0,
        mover_pause_s_max=chance.choice((0.3, 1.0, 3.0, None)) if brokers > 1 else None,
        pause_s_max=chance.choice((0.03, 0.06, 0.12)),
        compaction=compaction,
        listing_page_keys=_draw_listing_page(seed),
        settings=draw_settings(chance, compaction),
        schedule=_with_later_faults(
            seed,
            draw_schedule(chance, machines),
            machines,
            has_controller_readers=has_controller_readers,
            has_readers=has_readers,
        ),
    )


def _draw_listing_page(seed: int) -> int:
    chance = random.Random(f"listings {seed}")
    return chance.choice((2, 7)) if chance.random() < SMALL_PAGES_SHARE else LISTING_PAGE_KEYS


def _with_later_faults(
    seed: int, schedule: Schedule, machines: Machines, *, has_controller_readers: bool, has_readers: bool
) -> Schedule:
    """Add the kinds of faults that only some seeds have, each from its own random numbers."""
    if has_controller_readers:
        chance = random.Random(f"stale leaders {seed}")
        count = chance.randint(1, STALE_LEADERS_MAX)
        schedule = schedule.with_more(chance, FaultKind.STALE_LEADER, machines, count)
    if has_readers:
        chance = random.Random(f"cut off {seed}")
        schedule = schedule.with_more(chance, FaultKind.CUT_OFF, machines, chance.randint(0, CUTS_OFF_MAX))
        if machines.takes_over:
            schedule = schedule.with_more(chance, FaultKind.ZOMBIE, machines, chance.randint(0, 1))
    chance = random.Random(f"long pauses {seed}")
    if chance.random() < LONG_PAUSES_SHARE:
        count = chance.randint(1, LONG_PAUSES_MAX)
        schedule = schedule.with_more(chance, FaultKind.LONG_PAUSE, machines, count)
    chance = random.Random(f"standing still {seed}")
    if machines.compactors and chance.random() < PAUSES_IN_TASKS_SHARE:
        count = chance.randint(1, PAUSES_IN_TASKS_MAX)
        schedule = schedule.with_more(chance, FaultKind.PAUSE_IN_TASK, machines, count)
    chance = random.Random(f"owned open {seed}")
    if chance.random() < OPEN_FAULTS_SHARE:
        for kind in (FaultKind.CRASH_AT_OPEN, FaultKind.LOST_AT_OPEN, FaultKind.PAUSE_AT_OPEN):
            schedule = schedule.with_more(chance, kind, machines, chance.randint(0, OPEN_FAULTS_MAX))
    return schedule


def draw_balance(chance: random.Random) -> BalanceSettings:
    """Draw a balancer that makes moves within seconds, or none at all."""
    if chance.random() < STILL_SHARE:
        return BalanceSettings(
            balance_partitions_min=10_000,
            balance_in_bytes_per_s_min=1024 * MIB,
            balance_out_bytes_per_s_min=1024 * MIB,
        )
    return BalanceSettings(
        balance_interval_ms=500,
        balance_in_bytes_per_s_min=200,
        balance_out_bytes_per_s_min=200,
        balance_partition_cool_down_ms=2_000,
        balance_broker_cool_down_ms=500,
        balance_smoothing_ms=1_000,
    )


def draw_settings(chance: random.Random, compaction: CompactionPlan) -> ClusterSettings:
    """Draw sizes that are small enough to reach every bound within seconds."""
    snapshot_batches = chance.choice((8, 25, 40, 150))
    cache_bytes = chance.choice((96, 256, 512)) * KIB
    return ClusterSettings(
        controller=ControllerSettings(
            destroy_delay_ms=chance.choice((300, 1_000, 2_500)),
            log_segment_bytes=chance.choice((16, 64)) * KIB,
            log_trailing_batches=chance.choice((4, 30, 20_000)),
            log_trailing_bytes_max=chance.choice((8, 64)) * KIB,
            batch_bytes_max=64 * KIB,
            snapshot_batches=snapshot_batches,
            retained_batches_max=chance.choice((12, 60, 400)),
            session_timeout_ms=2_000,
            progress_interval_ms=chance.choice((100, 500)),
            session_reset_grace_ms=chance.choice((300, 1_000)),
            reelection_timeout_ms=chance.choice((600, 1_500, 4_000)),
            drain_retry_ms=200,
            balance=draw_balance(chance),
            compaction=compaction.controller,
            snapshot_leases=compaction.snapshots,
        ),
        broker=draw_broker(chance, compaction, cache_bytes),
        gc=GcSettings(
            claim_objects_max=chance.choice((3, 10)),
            claim_ttl_ms=chance.choice((1_000, 2_000)),
            poll_interval_ms_min=200,
            poll_interval_ms_max=1_000,
            wal_leftovers_interval_ms=1_000,
            reconcile_interval_ms=compaction.reconcile_interval_ms,
            reconcile_age_ms_min=1_000,
            reconcile_keys_per_s=1_000_000,
        ),
        compactor=compaction.compactor,
        retry=RetrySettings(attempts_max=4, deadline_ms=2_000, backoff_ms_first=5, backoff_ms_max=100),
    )


def draw_broker(chance: random.Random, compaction: CompactionPlan, cache_bytes: int) -> BrokerSettings:
    """Draw small segments, caches, uploads and logs."""
    segment_kib = chance.choice((6, 12, 48))
    return BrokerSettings(
        segment_bytes=segment_kib * KIB,
        segment_ms=1 if segment_kib == 6 else 604_800_000,  # with 1 nearly every batch starts a segment
        controller_timeout_ms=3_000,
        cold_read_ms_max=4_000,
        shutdown_upload_ms_max=1_500,
        groups=GroupSettings(offsets_topic_partitions=COORDINATOR_PARTITIONS),
        storage=StorageSettings(
            log_cache_bytes_max=cache_bytes,
            append_waiting_bytes_max=32 * KIB,
            block_cache_bytes_max=chance.choice((64, 256)) * KIB,
            upload_size_bytes_max=chance.choice((16, 32)) * KIB,
            upload_interval_ms=chance.choice((200, 700, 2_000)),
            split_size_bytes=chance.choice((4, 8)) * KIB,
            object_block_bytes_max=chance.choice((2, 4)) * KIB,
            small_rest_bytes_max=4 * KIB,
            set_object_streams_max=cache_bytes // (32 * KIB),
            wal_bytes_max=1 * MIB,
            recovery_chunk_bytes_max=24 * KIB,
            upload_retry_ms_max=200,
            prepared_ttl_ms=chance.choice((4_000, 8_000)),
            wal_slot_bytes_wanted=chance.choice((4, 16)) * KIB,
            wal_requests_per_s_max=chance.choice((10.0, 50.0, 200.0)),
            wal_hedge_ms=chance.choice((60, 500)),
            wal_hedge_share=0.5,
            wal_recovery_slots_max=chance.choice((8, 30, 1_024)),
            wal_verify=chance.choice(("auto", "always")),
            recovery_reads_in_flight_max=chance.choice((2, 64)),
        ),
        park_ms_max=chance.choice((0, 300)),
        drain_ms_max=8_000,
        load_report_ms=300,
        maintenance_interval_ms=500 if compaction.compactors or compaction.keyed else 5_000,
        cleaner_interval_ms=400,
    )
