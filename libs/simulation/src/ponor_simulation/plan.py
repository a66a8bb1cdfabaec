"""A run's plan: everything that a seed decides before the run begins.

What lives here: the shape of the cluster and of its clients, small sizes for every bound, and the schedule of faults. A plan and the code are all that a run depends on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ponor_broker.groups.settings import GroupSettings
from ponor_broker.settings import BrokerSettings
from ponor_controller.settings import ControllerSettings
from ponor_gc.settings import GcSettings
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.retrying import RetrySettings

from ponor_simulation.cluster import ClusterSettings, controller_names
from ponor_simulation.faults.swarm import Machines, Schedule, draw_schedule

CONTROLLERS: Final = (1, 3, 3)
"""What a seed chooses from."""
BUCKET_SHARE: Final = 0.7
RIVALS_SHARE: Final = 0.6


@dataclass(frozen=True, slots=True)
class RunPlan:
    """See the module's docstring.

    Attributes:
        has_bucket: objects are in a bucket; else in a directory of the broker's machine, where the garbage collector lives too.
        rivals: nodes that fight for streams; they need a bucket.
        repeaters: clients that repeat operations on purpose.
        pause_s_max: between what a producer or consumer does.
    """

    seed: int
    controllers: int
    has_bucket: bool
    partitions: int
    producers: int
    consumers: int
    rivals: int
    repeaters: int
    pause_s_max: float
    settings: ClusterSettings
    schedule: Schedule

    def only(self, numbers: Sequence[int]) -> RunPlan:
        """The same plan with some of its faults."""
        return replace(self, schedule=self.schedule.only(numbers))


def draw_plan(seed: int) -> RunPlan:
    """The plan of a seed."""
    chance = random.Random(f"plan {seed}")
    controllers = chance.choice(CONTROLLERS)
    has_bucket = chance.random() < BUCKET_SHARE
    producers, consumers = chance.randint(1, 3), chance.randint(1, 2)
    rivals = 2 if has_bucket and chance.random() < RIVALS_SHARE else 0
    repeaters = chance.randint(0, 1)
    machines = Machines(
        controllers=controller_names(controllers),
        brokers=("broker",),
        gcs=("gc",) if has_bucket else (),
        clients=tuple(f"producer-{number}" for number in range(producers))
        + tuple(f"consumer-{number}" for number in range(consumers)),
        has_bucket=has_bucket,
    )
    return RunPlan(
        seed=seed,
        controllers=controllers,
        has_bucket=has_bucket,
        partitions=chance.randint(1, 4),
        producers=producers,
        consumers=consumers,
        rivals=rivals,
        repeaters=repeaters,
        pause_s_max=chance.choice((0.03, 0.06, 0.12)),
        settings=draw_settings(chance),
        schedule=draw_schedule(chance, machines),
    )


def draw_settings(chance: random.Random) -> ClusterSettings:
    """Sizes at which every bound is met within seconds."""
    snapshot_batches = chance.choice((8, 25, 40, 150))
    cache_bytes = chance.choice((96, 256, 512)) * KIB
    return ClusterSettings(
        controller=ControllerSettings(
            destroy_delay_ms=chance.choice((300, 1_000, 2_500)),
            log_segment_bytes=chance.choice((16, 64)) * KIB,
            batch_bytes_max=64 * KIB,
            snapshot_batches=snapshot_batches,
            retained_batches_max=chance.choice((12, 60, 400)),
            session_timeout_ms=2_000,
            progress_interval_ms=chance.choice((100, 500)),
        ),
        broker=BrokerSettings(
            segment_bytes=chance.choice((6, 12, 48)) * KIB,
            controller_timeout_ms=3_000,
            cold_read_ms_max=4_000,
            shutdown_upload_ms_max=1_500,
            groups=GroupSettings(offsets_topic_partitions=2),
            storage=StorageSettings(
                log_cache_bytes_max=cache_bytes,
                append_waiting_bytes_max=32 * KIB,
                block_cache_bytes_max=chance.choice((64, 256)) * KIB,
                upload_size_bytes_max=chance.choice((16, 32)) * KIB,
                upload_interval_ms=chance.choice((200, 700, 2_000)),
                split_size_bytes=chance.choice((4, 8)) * KIB,
                object_block_bytes_max=chance.choice((2, 4)) * KIB,
                small_rest_bytes_max=4 * KIB,
                wal_bytes_max=1 * MIB,
                recovery_chunk_bytes_max=24 * KIB,
                upload_retry_ms_max=200,
                prepared_ttl_ms=chance.choice((4_000, 8_000)),
            ),
        ),
        gc=GcSettings(
            claim_objects_max=chance.choice((3, 10)),
            claim_ttl_ms=chance.choice((1_000, 2_000)),
            poll_interval_ms_min=200,
            poll_interval_ms_max=1_000,
        ),
        retry=RetrySettings(attempts_max=4, deadline_ms=2_000, backoff_ms_first=5, backoff_ms_max=100),
    )
