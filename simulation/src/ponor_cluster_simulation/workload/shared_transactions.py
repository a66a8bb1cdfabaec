"""The state that the transactional clients of one run share: settings, history, and the progress of the
partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_cluster_simulation.histories.transactions import TransactionHistory
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.workload.producer_session import IdUse

TOPIC: Final = "transfers"
FAILOVER_S_MAX: Final = 10.0
"""Time after healing until a coordinator serves."""


@dataclass(slots=True)
class SharedTransactions:
    """The state that all transactional clients of a run share.

    Attributes:
        topic_configs: configuration of the topic, which the first client creates.
        timeout_s: transaction timeout.
        acknowledged_offsets: group and partition to the newest offset of an acknowledged commit.
        is_over: everything was transformed.
        ended: number of transactions that their clients ended.
        healed_s: when the last fault ended; None before.
        behind_since_s: partition to a last stable offset below the high watermark, and its time.
    """

    partitions: int
    bootstrap: Sequence[str]
    checks: Checks
    pause_s_max: float
    timeout_s: float
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    history: TransactionHistory = field(default_factory=TransactionHistory)
    uses: dict[str, IdUse] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    acknowledged_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    is_over: bool = False
    ended: int = 0
    healed_s: float | None = None
    behind_since_s: dict[int, tuple[int, float]] = field(default_factory=dict)

    def note_stable(self, partition: int, stable: int, high_watermark: int, now_s: float) -> None:
        """Check that a last stable offset does not stay behind after the cluster is healed."""
        known, since_s = self.behind_since_s.get(partition, (-1, now_s))
        if self.healed_s is None or stable > known or stable == high_watermark:
            self.behind_since_s[partition], since_s = (stable, now_s), now_s
        self.checks.require(
            53,
            now_s - since_s <= 2 * self.timeout_s + FAILOVER_S_MAX,
            f"the last stable offset of partition {partition} has stayed at {stable} for"
            f" {now_s - since_s:.1f} s",
        )
