"""The clients of one run: created from the plan, started together, stopped at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, Protocol

from ponor_kafka.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from ponor_runtime.identity import compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation

from ponor_cluster_simulation.cluster.sim_cluster import ORDINAL, SimCluster
from ponor_cluster_simulation.histories.share_groups import ShareHistory
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.run.plan import COORDINATOR_PARTITIONS, RunPlan
from ponor_cluster_simulation.run.transaction_clients import TransactionClients
from ponor_cluster_simulation.run.transaction_plan import STATE_PARTITIONS
from ponor_cluster_simulation.workload.admin import Admin
from ponor_cluster_simulation.workload.broker_reader import BrokerReader
from ponor_cluster_simulation.workload.cold_reader import ColdReader, StreamHistory
from ponor_cluster_simulation.workload.committer import Committer
from ponor_cluster_simulation.workload.consumer import Consumer
from ponor_cluster_simulation.workload.controller_reader import ControllerReader, IndexHistory
from ponor_cluster_simulation.workload.group_member import GroupMember
from ponor_cluster_simulation.workload.history import ClusterHistory
from ponor_cluster_simulation.workload.keyed import TOPIC as KEYED
from ponor_cluster_simulation.workload.keyed import KeyedHistory, KeyedReader, KeyedWriter
from ponor_cluster_simulation.workload.mover import Mover
from ponor_cluster_simulation.workload.producer import Producer
from ponor_cluster_simulation.workload.repeater import Repeater
from ponor_cluster_simulation.workload.share_member import ShareMember
from ponor_cluster_simulation.workload.share_sessions import SharedShareGroup
from ponor_cluster_simulation.workload.shared_group import FASTEST_CLOCK, STALE_S, SharedGroup
from ponor_cluster_simulation.workload.shared_transactions import TOPIC as TRANSACTIONAL
from ponor_cluster_simulation.workload.stale_commits import SharedStreams, StaleCommitter
from ponor_cluster_simulation.workload.streams_member import SharedStreamsGroup, StreamsMember
from ponor_cluster_simulation.workload.wrong_compactions import WrongCompactor

TOPIC: Final = "orders"
PASSING: Final = {"internal.segment.bytes": "9500", "retention.bytes": "10000"}
"""Configuration of the topics that the admin fills and deletes, in runs with compaction: retention also trims
these topics.
"""
MEMBER_PAUSE_S_MAX: Final = 0.2
FIRST_STALE_COMMITTER: Final = 50
FIRST_REPEATER: Final = 60
FIRST_WRONG_COMPACTOR: Final = 70
"""Node numbers."""


class _Client(Protocol):
    name: str

    async def run(self, runtime: Runtime) -> None: ...


class _Stoppable(Protocol):
    stop: bool


class RunClients:
    """All clients of a run.

    Process names (`rival-0`, `meddler-0`, …) seed the random numbers of the processes. A changed name would
    change the course of every recorded seed.

    Args:
        simulation: starts the processes of the clients.
        cluster: the cluster that the clients use.
        plan: gives the number of clients of each kind.
        observed_index: returns the newest metadata index that the run's observer has received.
    """

    def __init__(
        self,
        simulation: Simulation,
        cluster: SimCluster,
        plan: RunPlan,
        observed_index: Callable[[], int],
    ) -> None:
        self._simulation = simulation
        self._cluster = cluster
        self._plan = plan
        self._checks = Checks(cluster.coverage.checks)
        self.history = ClusterHistory()
        self.stream_history = StreamHistory()
        self.keyed_history = KeyedHistory()
        self.index_history = IndexHistory(observed_index)
        self.shared_streams = SharedStreams(shares_objects=plan.compaction.wears_early)
        self.producers = self._make_producers()
        self.consumers = [self.consumer(f"consumer-{number}") for number in range(plan.consumers)]
        self.admin = Admin(
            TOPIC,
            plan.partitions,
            bootstrap=cluster.kafka_addresses,
            passing_configs=PASSING if plan.compaction.compactors else None,
        )
        self.movers = self._make_movers()
        self.committers = self._make_committers()
        self.stale_committers = self._make_stale_committers()
        self.cold_readers = self._make_cold_readers()
        self.keyed_writers = self._make_keyed_writers()
        self.keyed_readers = [self.keyed_reader("keyed-reader-0") for _ in self.keyed_writers]
        self.repeaters = self._make_repeaters()
        self.controller_readers = self._make_controller_readers()
        self.broker_readers = self._make_broker_readers()
        self.wrong_compactors = self._make_wrong_compactors()
        self.group = self._make_group()
        self.members = [
            GroupMember(name, self.group, is_static=is_static)
            for name, is_static in zip(plan.group.clients, plan.group.members, strict=True)
        ]
        self.share_group = self._make_share_group()
        self.share_members = [ShareMember(name, self.share_group) for name in plan.share_group.clients]
        self.streams_group = self._make_streams_group()
        self.streams_members = [
            StreamsMember(name, self.streams_group) for name in plan.streams_group.clients
        ]
        self.transactions = TransactionClients(
            plan.transactions, self._checks, bootstrap=cluster.kafka_addresses, pause_s_max=plan.pause_s_max
        )

    def consumer(self, name: str) -> Consumer:
        """A reader of all partitions, not started."""
        return Consumer(
            name,
            TOPIC,
            self._plan.partitions,
            self.history,
            bootstrap=self._cluster.kafka_addresses,
            pause_s_max=self._plan.pause_s_max,
        )

    def keyed_reader(self, name: str, *, stop: bool = False) -> KeyedReader:
        """A reader of the compacted topic, not started. With `stop` it reads the topic once."""
        return KeyedReader(
            name,
            self.keyed_history,
            Checks(self._cluster.coverage.checks),
            bootstrap=self._cluster.kafka_addresses,
            stop=stop,
        )

    def start_first(self) -> None:
        """Start the clients that need only the topic: groups, producers, consumers, repeaters."""
        for number, committer in enumerate(self.committers):
            self._simulation.process(f"group-{number}", committer.run).start()
        self._start(self.producers, self.consumers, self.repeaters)
        self._start(self.transactions.producers, self.transactions.readers)
        self._start(self.members, self.share_members, self.streams_members)

    def start_others(self) -> None:
        """Start the other clients. Call it after the first acknowledgement, so that brokers and not stale
        committers lead the partitions.
        """
        self._start(self.stale_committers)
        for mover in self.movers:
            self._simulation.process("mover", mover.run).start()
        self._start(self.cold_readers)
        for writer in self.keyed_writers:
            self._simulation.process("keyed-writer", writer.run).start()
        self._start(self.keyed_readers, self.controller_readers, self.broker_readers, self.wrong_compactors)

    def stop(self) -> None:
        """Stop all clients except consumers, keyed readers, broker readers and members, which read to the
        end.
        """
        self.admin.stop = self.shared_streams.stop = True
        self.group.is_calm = self.share_group.is_calm = self.streams_group.is_calm = True
        self.transactions.stop()
        groups: tuple[Sequence[_Stoppable], ...] = (
            self.producers,
            self.movers,
            self.committers,
            self.repeaters,
            self.controller_readers,
            self.wrong_compactors,
            self.cold_readers,
            self.keyed_writers,
        )
        for client in chain.from_iterable(groups):
            client.stop = True

    def _start(self, *groups: Sequence[_Client]) -> None:
        for client in chain.from_iterable(groups):
            self._simulation.process(client.name, client.run).start()

    def _make_group(self) -> SharedGroup:
        return SharedGroup(
            "readers-of-orders",
            TOPIC,
            self._plan.partitions,
            self._cluster.kafka_addresses,
            pause_s_max=MEMBER_PAUSE_S_MAX,
            classic_share=self._plan.group.classic_share,
        )

    def _make_streams_group(self) -> SharedStreamsGroup:
        addresses = self._cluster.kafka_addresses
        return SharedStreamsGroup(
            "streams-of-orders", TOPIC, self._plan.partitions, addresses, pause_s_max=MEMBER_PAUSE_S_MAX
        )

    def _make_share_group(self) -> SharedShareGroup:
        plan = self._plan.share_group
        return SharedShareGroup(
            "workers-of-orders",
            TOPIC,
            self._plan.partitions,
            self._cluster.kafka_addresses,
            pause_s_max=MEMBER_PAUSE_S_MAX,
            history=ShareHistory(plan.deliveries_max, plan.lock_ms / 1000 / FASTEST_CLOCK, STALE_S),
            records=self.history,
            now_s=self._simulation.loop.time,
        )

    def _make_producers(self) -> list[Producer]:
        return [
            Producer(
                f"producer-{number}",
                TOPIC,
                self._plan.partitions,
                self.history,
                bootstrap=self._cluster.kafka_addresses,
                pause_s_max=self._plan.pause_s_max,
            )
            for number in range(self._plan.producers)
        ]

    def _make_movers(self) -> list[Mover]:
        if self._plan.mover_pause_s_max is None:
            return []
        topics = {TOPIC: self._plan.partitions, OFFSETS_TOPIC: COORDINATOR_PARTITIONS}
        if self._plan.compaction.keyed:
            topics[KEYED] = 1
        if self._plan.transactions.clients:
            topics[TRANSACTIONAL] = self._plan.transactions.partitions
            topics[TRANSACTIONS_TOPIC] = STATE_PARTITIONS
        if self._plan.share_group.clients:
            topics[SHARE_STATE_TOPIC] = COORDINATOR_PARTITIONS
        cluster = self._cluster
        nodes = [cluster.node_of(name) for name in cluster.brokers]
        pause_s_max = self._plan.mover_pause_s_max
        return [Mover(topics, bootstrap=cluster.kafka_addresses, nodes=nodes, pause_s_max=pause_s_max)]

    def _make_committers(self) -> list[Committer]:
        return [
            Committer(
                f"group-{number}",
                TOPIC,
                bootstrap=self._cluster.kafka_addresses,
                pause_s_max=self._plan.pause_s_max,
            )
            for number in range(self._plan.groups)
        ]

    def _make_stale_committers(self) -> list[StaleCommitter]:
        if self._cluster.store is None:
            return []
        return [
            StaleCommitter(
                f"rival-{number}",
                compose_node_id(ORDINAL, FIRST_STALE_COMMITTER + number),
                self.shared_streams,
                self._cluster.store,
                self._cluster.addresses,
            )
            for number in range(self._plan.stale_committers)
        ]

    def _make_cold_readers(self) -> list[ColdReader]:
        store = self._cluster.store
        if store is None:
            return []
        checks, addresses = Checks(self._cluster.coverage.checks), self._cluster.addresses
        return [
            ColdReader(f"cold-reader-{number}", self.stream_history, store, addresses, checks)
            for number in range(self._plan.compaction.readers)
        ]

    def _make_keyed_writers(self) -> list[KeyedWriter]:
        bootstrap, pause_s_max = self._cluster.kafka_addresses, self._plan.pause_s_max
        return [
            KeyedWriter(self.keyed_history, bootstrap=bootstrap, pause_s_max=pause_s_max)
            for _ in range(self._plan.compaction.keyed)
        ]

    def _make_repeaters(self) -> list[Repeater]:
        return [
            Repeater(
                f"repeater-{number}",
                compose_node_id(ORDINAL, FIRST_REPEATER + number),
                self._cluster.addresses,
                self._checks,
            )
            for number in range(self._plan.repeaters)
        ]

    def _make_controller_readers(self) -> list[ControllerReader]:
        addresses = self._cluster.addresses[: self._plan.controller_readers]
        return [
            ControllerReader(f"loyal-{number}", address, self.index_history, self._checks)
            for number, address in enumerate(addresses)
        ]

    def _make_broker_readers(self) -> list[BrokerReader]:
        brokers = list(zip(self._cluster.brokers, self._cluster.kafka_addresses, strict=True))
        return [
            BrokerReader(
                f"reader-of-{name}",
                address,
                TOPIC,
                self.history,
                self.committers,
                self._checks,
                session_timeout_ms=self._plan.settings.controller.session_timeout_ms,
            )
            for name, address in brokers[: self._plan.broker_readers]
        ]

    def _make_wrong_compactors(self) -> list[WrongCompactor]:
        return [
            WrongCompactor(
                f"meddler-{number}",
                compose_node_id(ORDINAL, FIRST_WRONG_COMPACTOR + number),
                self._cluster.addresses,
                self._checks,
            )
            for number in range(self._plan.compaction.wrong_compactors)
        ]
