"""The transactional clients of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor_cluster_simulation.histories.transactions import TransactionHistory
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.run.transaction_plan import IdPlan, TransactionPlan
from ponor_cluster_simulation.workload.committed_reader import CommittedReader
from ponor_cluster_simulation.workload.shared_transactions import SharedTransactions
from ponor_cluster_simulation.workload.transactional_client import TransactionalClient
from ponor_cluster_simulation.workload.transformer import Transformer

PAUSE_FACTOR: Final = 3
"""These clients pause longer than others, because each of their steps is several requests."""


class TransactionClients:
    """All transactional clients of a run, not started.

    Attributes:
        shared: the state that the clients share, with their history.
    """

    def __init__(
        self, plan: TransactionPlan, checks: Checks, *, bootstrap: Sequence[str], pause_s_max: float
    ) -> None:
        self.shared = SharedTransactions(
            partitions=plan.partitions,
            bootstrap=bootstrap,
            checks=checks,
            pause_s_max=PAUSE_FACTOR * pause_s_max,
            timeout_s=plan.timeout_s,
            topic_configs=plan.topic_configs,
            history=TransactionHistory(transformed=plan.hops),
        )
        self.writers = [
            TransactionalClient(name, each.name, generation, self.shared)
            for each in plan.writers
            for name, generation in zip(each.clients, each.generations, strict=True)
        ]
        self.transformers = [
            transformer
            for number, each in enumerate(plan.transformers)
            for transformer in self._transformers(
                each, range(number, plan.partitions, len(plan.transformers))
            )
        ]
        self.readers = [
            CommittedReader(f"committed-reader-{number}", self.shared) for number in range(plan.readers)
        ]

    @property
    def producers(self) -> list[TransactionalClient]:
        """All clients that write."""
        return [*self.writers, *self.transformers]

    def stop(self) -> None:
        """Stop the writers; the transformers end when everything is transformed."""
        for client in self.producers:
            client.stop = True

    def _transformers(self, plan: IdPlan, partitions: Sequence[int]) -> list[Transformer]:
        made = [
            Transformer(name, plan.name, generation, self.shared, partitions)
            for name, generation in zip(plan.clients, plan.generations, strict=True)
        ]
        for standby in made[1:]:
            standby.is_standby = True
        return made
