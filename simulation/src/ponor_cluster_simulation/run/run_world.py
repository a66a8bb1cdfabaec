"""The parts of one run: the cluster, its clients, the ledger, and the check that every fencing of a broker
had a valid cause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ponor.metadata.v1.records_pb2 import Record, RecordBatch
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

from ponor_cluster_simulation.cluster.sim_cluster import SimCluster
from ponor_cluster_simulation.cluster.supervision import Supervisor
from ponor_cluster_simulation.faults.injector import FaultInjector
from ponor_cluster_simulation.invariants.fences import Fences
from ponor_cluster_simulation.invariants.ledger import Ledger
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.run.plan import RunPlan
from ponor_cluster_simulation.run.run_clients import TOPIC, RunClients

FENCE_HORIZON: Final = 2
"""How long after a fault a broker may still be fenced because of it, in periods of session timeout plus
re-election timeout.
"""


class RunWorld:
    """The state that a run, its judgement and its report share.

    Attributes:
        observer: a client that follows the metadata for the whole run; None until it has started.
        injector: None until the faults begin.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.simulation = Simulation(plan.seed)
        self.cluster = _make_cluster(self.simulation, plan)
        self.checks = Checks(self.cluster.coverage.checks)
        self.ledger = _make_ledger(self.cluster, plan, self.checks)
        self.cluster.watch.on_batch = self._committed
        self.cluster.lost_rights = lambda name: self.ledger.streams.is_fenced(self.cluster.node_of(name))
        self.observer: SubscriptionClient | None = None
        self.clients = RunClients(self.simulation, self.cluster, plan, self._observed_index)
        self.ledger.snapshots.is_closed = self.clients.stream_history.closing.__contains__
        self.supervisor = Supervisor(self.simulation, self.cluster)
        self.injector: FaultInjector | None = None
        self._topic_id = b""
        self._fences = self._make_fences()

    def start(self, name: str, main: Callable[[Runtime], Awaitable[None]]) -> SimProcess:
        """Start a client process."""
        process = self.simulation.process(name, main)
        process.start()
        return process

    async def wait(self, number: int, what: str, condition: Callable[[], bool], *, s_max: float) -> None:
        """Let virtual time pass until `condition` holds.

        Raises:
            InvariantBrokenError: the condition does not hold within `s_max`; `number` is the invariant.
        """

        def holds() -> bool:
            self.supervisor.check()
            return condition()

        try:
            await wait_until(holds, poll_s=0.05, timeout_s=s_max)
        except TimeoutError:
            self.checks.require(number, False, f"not within {s_max} s: {what}")
        self.checks.require(number, True, what)

    def _observed_index(self) -> int:
        return 0 if self.observer is None else self.observer.image.index

    def _make_fences(self) -> Fences:
        controller = self.plan.settings.controller
        timeouts_ms = controller.session_timeout_ms + controller.reelection_timeout_ms
        return Fences(
            self.checks,
            self.simulation.loop.time,
            FENCE_HORIZON * timeouts_ms / 1000,
            lambda name: 0.0 if self.injector is None else self.injector.cut_off_until_s.get(name, 0.0),
            lambda name: 0.0 if self.injector is None else self.injector.hindered_until_s.get(name, 0.0),
        )

    def _committed(self, batch: RecordBatch) -> None:
        self.ledger.batch(batch)
        for record in batch.records:
            self._fences.committed(record)
            self._note_election(record)
            if self.injector is not None:
                self.injector.committed(record)
                if record.WhichOneof("kind") == "node_fenced":
                    self._fenced(record.node_fenced.node_id)

    def _note_election(self, record: Record) -> None:
        """Note a leader of the clients' topic; the history of the share group needs it."""
        match record.WhichOneof("kind"):
            case "topic_created" if record.topic_created.name == TOPIC:
                self._topic_id = record.topic_created.topic_id
            case "partition_changed" if record.partition_changed.topic_id == self._topic_id:
                row, history = record.partition_changed, self.clients.share_group.history
                history.elected(row.partition, row.leader_id, row.leader_epoch, self.simulation.loop.time())

    def _fenced(self, node_id: int) -> None:
        name = self.cluster.broker_of(node_id)
        if name is not None:
            self._fences.fenced(self.cluster.processes[name], node_id)


def _make_cluster(simulation: Simulation, plan: RunPlan) -> SimCluster:
    cluster = SimCluster(
        simulation,
        plan.settings,
        store_in_directory=not plan.has_bucket,
        controllers=plan.controllers,
        brokers=plan.brokers,
        wal=plan.wal,
        compactors=plan.compaction.compactors,
        part_size_bytes_min=plan.compaction.part_size_bytes_min,
    )
    if cluster.store is not None:
        cluster.store.listing_page_keys = plan.listing_page_keys
    return cluster


def _make_ledger(cluster: SimCluster, plan: RunPlan, checks: Checks) -> Ledger:
    """Make the ledger; a bucket reports every put and every deletion to it."""
    bucket = None if cluster.store is None else cluster.store.bucket
    controller = plan.settings.controller
    pinned_bytes_max = controller.snapshot_leases.snapshot_pinned_bytes_max
    ledger = Ledger(checks, bucket, controller.destroy_delay_ms, pinned_bytes_max)
    if bucket is not None:
        bucket.on_put, bucket.on_delete = ledger.put, ledger.deleted
    return ledger
