"""The part of a plan that concerns transactions: clients, configuration of the topic, additional faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ponor_broker.settings import BrokerSettings
from s3stream.settings import KIB

from ponor_cluster_simulation.faults.fault import FaultKind
from ponor_cluster_simulation.faults.swarm import Machines, Schedule

SHARE: Final = 0.6
"""Share of the seeds with transactions."""
RIVALS_SHARE: Final = 0.4
"""Share of the transactional ids that two clients use."""
COMPACTED_SHARE: Final = 0.35
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "300",
}
"""Configuration of a compacted topic. Each record has its own key, so the cleaner removes aborted records and
markers only.
"""
LINK_FAULTS: Final = (
    FaultKind.ABANDON,
    FaultKind.CLOG,
    FaultKind.CUT,
    FaultKind.DELAY,
    FaultKind.LOSS,
    FaultKind.RESET,
)
LINK_FAULTS_MAX: Final = 3
STATE_PARTITIONS: Final = 2


@dataclass(frozen=True, slots=True)
class IdPlan:
    """A transactional id, and the generation of each of its clients."""

    name: str
    generations: tuple[int, ...]

    @property
    def clients(self) -> tuple[str, ...]:
        """Process names of its clients."""
        return tuple(f"{self.name}-{number}" for number in range(len(self.generations)))


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """The transactional clients of a run.

    Attributes:
        writers: ids whose clients only write.
        transformers: ids whose clients read and write.
        partitions: number of partitions of the topic.
        hops: how many transactions transform a record, one after the other.
        timeout_s: transaction timeout.
    """

    writers: tuple[IdPlan, ...] = ()
    transformers: tuple[IdPlan, ...] = ()
    readers: int = 0
    partitions: int = 0
    hops: int = 0
    timeout_s: float = 0.0
    topic_configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def clients(self) -> tuple[str, ...]:
        """Process names of all producers."""
        return tuple(name for each in (*self.writers, *self.transformers) for name in each.clients)


NO_TRANSACTIONS: Final = TransactionPlan()


def draw_transactions(seed: int) -> TransactionPlan:
    """Draw the transactions of a seed."""
    chance = random.Random(f"transactions {seed}")
    if chance.random() >= SHARE:
        return NO_TRANSACTIONS
    partitions = chance.randint(1, 3)
    transformers = tuple(_draw_id(chance, f"transformer-{number}") for number in range(chance.randint(0, 2)))
    return TransactionPlan(
        writers=tuple(_draw_id(chance, f"writer-{number}") for number in range(chance.randint(1, 2))),
        transformers=transformers[:partitions],
        readers=1,
        partitions=partitions,
        hops=chance.randint(1, 2) if transformers else 0,
        timeout_s=chance.choice((1.5, 3.0, 5.0)),
        topic_configs=COMPACTED if chance.random() < COMPACTED_SHARE else {},
    )


def _draw_id(chance: random.Random, name: str) -> IdPlan:
    clients = 2 if chance.random() < RIVALS_SHARE else 1
    return IdPlan(name, tuple(chance.randint(1, 2) for _ in range(clients)))


def with_transaction_faults(
    seed: int, schedule: Schedule, machines: Machines, plan: TransactionPlan
) -> Schedule:
    """Add faults of the links between brokers, and between brokers and transactional clients."""
    if not plan.clients:
        return schedule
    links = Machines(
        controllers=(),
        brokers=machines.brokers,
        gcs=(),
        clients=plan.clients,
        has_bucket=False,
        has_peer_links=True,
    )
    chance = random.Random(f"links of transactions {seed}")
    for kind in chance.sample(LINK_FAULTS, 2):
        schedule = schedule.with_more(chance, kind, links, chance.randint(0, LINK_FAULTS_MAX))
    return schedule


def with_small_logs(seed: int, settings: BrokerSettings) -> BrokerSettings:
    """Draw settings with which coordinators rewrite their logs within seconds, or never."""
    chance = random.Random(f"transaction logs {seed}")
    rewrite_bytes = chance.choice((2, 8, 256)) * KIB
    return replace(
        settings,
        transactions=replace(
            settings.transactions,
            transaction_topic_partitions=STATE_PARTITIONS,
            transaction_rewrite_log_bytes_min=rewrite_bytes,
            transaction_rewrite_ratio=2,
        ),
        groups=replace(settings.groups, offsets_rewrite_log_bytes_min=rewrite_bytes, offsets_rewrite_ratio=2),
    )
