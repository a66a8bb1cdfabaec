"""One controller: its parts, connected.

What lives here: construction by constructor and the order in which parts hear of what happens; no decisions. What is on disk was recovered before; ports are bound by `app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.quorum import QUORUM as QUORUM_TABLE
from ponor_metadata.nouns.topics import MOVES
from ponor_raft.entry import Entry
from ponor_raft.limits import WINDOW_BYTES_MAX, WINDOW_ENTRIES_MAX, RaftLimits
from ponor_raft.node import RaftNode
from ponor_raft.stored import StoredState
from ponor_rpc.methods import CLUSTER, PEER, QUORUM, SESSION, SUBSCRIBE
from ponor_runtime.identity import number_of_node
from ponor_runtime.network import Handler, Network
from ponor_runtime.observer_clock import ABSENCE_S, ObserverClock
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.consensus.address_book import AddressBook, Addresses
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.members import VOTERS_SET_TAG, Member, members_in, members_of_rows
from ponor_controller.consensus.peers import Peers
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.raft_consensus import RaftConsensus
from ponor_controller.consensus.raft_driver import TICK_SECONDS, RaftDriver
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_traffic import SnapshotTraffic
from ponor_controller.domains.balancing import duty as balancer
from ponor_controller.domains.compaction import duty as compaction_driver
from ponor_controller.domains.compaction.garbage_ratio import Wear
from ponor_controller.domains.compaction.offering import Offering
from ponor_controller.domains.compaction.survey import Survey
from ponor_controller.domains.leases import duty as lease_driver
from ponor_controller.domains.moves import duty as move_driver
from ponor_controller.domains.nodes import drain_duty as drain_driver
from ponor_controller.domains.nodes import failover_duty as failover_driver
from ponor_controller.domains.objects import reclaim_duty as reclaim_driver
from ponor_controller.domains.objects.garbage_ages import GarbageAges
from ponor_controller.domains.quorum.first_records import QuorumRecords
from ponor_controller.domains.quorum.raft_quorum import RaftQuorum
from ponor_controller.kernel.cluster_clock import ClusterClock
from ponor_controller.kernel.confirmed_answers import ConfirmedAnswers
from ponor_controller.kernel.execution_loop import drive
from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.leader_duty import LeaderDuty, Step
from ponor_controller.kernel.leadership import ControllerLeadership
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.opening import Opening
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.kernel.snapshotter import Snapshotter
from ponor_controller.options import ControllerOptions
from ponor_controller.server.cluster_service import ClusterService
from ponor_controller.server.committed_batches import CommittedBatches
from ponor_controller.server.quorum_service import QuorumService
from ponor_controller.server.sessions.answer_turn import AnswerTurn
from ponor_controller.server.sessions.session_service import SessionService
from ponor_controller.server.subscriptions.image_source import ImageSource
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService
from ponor_controller.settings import ControllerSettings
from ponor_controller.startup.recovery import Recovered

ABSENCES_PER_SESSION_TIMEOUT: Final = 4
"""A shorter absence counts as silence of the nodes."""


class Controller:
    """See the module."""

    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        options: ControllerOptions,
        identity: DirectoryIdentity,
        log: RecordLog,
        stored: StoredState,
        recovered: Recovered,
        tasks: BackgroundTasks,
        peer_network: Network,
        own_addresses: Addresses,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._log = log
        self.image = recovered.image
        self.first_commit = asyncio.Event()
        """Set once something is committed here: from then on an empty log is a loss."""
        self.addresses = _address_book(options, identity, stored, recovered.image, own_addresses)
        self._build_consensus(settings, identity, stored, peer_network, own_addresses)
        self._build_proposals(settings)
        records = QuorumRecords(identity, self.addresses, self.proposer, runtime)
        self.leadership = ControllerLeadership(
            self.consensus,
            self.proposer,
            self._executor,
            self._lanes,
            runtime.randomness,
            [records.format, records.correct_addresses],
        )
        self._build_services(settings, identity, recovered)
        self._build_duties(settings)
        self._show()

    def _build_consensus(
        self,
        settings: ControllerSettings,
        identity: DirectoryIdentity,
        stored: StoredState,
        peer_network: Network,
        own_addresses: Addresses,
    ) -> None:
        runtime, own = self._runtime, identity.replica
        self._observed = ObserverClock(
            runtime.clock, min(ABSENCE_S, settings.session_timeout_ms / 1000 / ABSENCES_PER_SESSION_TIMEOUT)
        )
        self._cluster_clock = ClusterClock(self._observed, self.image.cluster_time_ms)
        self._opening = Opening(
            self.image,
            self._cluster_clock,
            stored.entries[-1] if stored.entries else None,
            lambda: self.driver.leaderless_ns,
        )
        self.peers = Peers(
            identity,
            self._incarnation,
            self.addresses,
            own_addresses,
            peer_network,
            runtime,
            self._tasks,
        )
        self.driver = RaftDriver(
            RaftNode(own, raft_limits(settings), stored, runtime.randomness.below),
            self._log,
            self.peers,
            runtime,
            self._tasks,
            slow_disk_ms=settings.election_timeout_ms,
            open_term=self._opening.encode,
            appended=self._appended,
        )
        self.consensus = RaftConsensus(
            self.driver, own, self.addresses, self.peers.is_connected, runtime.clock
        )

    def _build_proposals(self, settings: ControllerSettings) -> None:
        runtime = self._runtime
        self._activity = NodeActivity(
            self._observed, settings.session_timeout_ms, settings.session_reset_grace_ms
        )
        self._observed.on_return(self._activity.observer_was_absent)
        self._lanes = Lanes()
        self.proposer = Proposer(
            self.consensus,
            Overlay(self.image),
            self._cluster_clock,
            runtime.clock,
            settings,
            runtime.telemetry,
        )
        self._confirmed = ConfirmedAnswers(self.consensus)
        self._survey = Survey(self.image, settings.compaction)
        self._wear = Wear(self.image, settings.compaction)
        self._offering = Offering(self.image, self._survey, self._wear, settings.compaction)
        self._executor = Executor(
            self.proposer,
            settings,
            runtime.randomness,
            self._activity.is_suspected,
            runtime.telemetry,
            self._confirmed,
            self._offering,
        )

    def _build_services(
        self, settings: ControllerSettings, identity: DirectoryIdentity, recovered: Recovered
    ) -> None:
        runtime = self._runtime
        self._balancer = balancer.Balancer(
            self.proposer, self.leadership, self._activity, settings, runtime.clock, runtime.telemetry
        )
        answers = AnswerTurn()
        self.sessions = SessionService(
            self.proposer,
            self._lanes,
            self._activity,
            self.leadership,
            identity.cluster_id,
            settings,
            loads=self._balancer.report,
            answers=answers,
            observed=self._observed,
        )
        self.subscriptions = SubscriptionService(
            recovered.tail,
            ImageSource(self.image, runtime.clock),
            self.leadership,
            cluster_id=identity.cluster_id,
            cluster_time_ms=self._cluster_time_ms,
            settings=settings,
            telemetry=runtime.telemetry,
            observed=self._observed,
        )
        self.snapshotter = self._build_snapshotter(settings)
        self._committed = CommittedBatches(
            self.image,
            self.proposer,
            recovered.tail,
            self.subscriptions,
            self.snapshotter,
            runtime.telemetry,
            answers.end,
        )
        self.driver.on_commit(self._committed.committed)
        self.driver.on_commit(self._learn)
        self.driver.on_commit(self._balancer.committed)
        self._traffic = SnapshotTraffic(
            identity.replica, self._log, self.driver, self.peers, self._tasks, runtime.clock, self._installed
        )
        self.driver.attach(self._traffic)
        self.control = RaftQuorum(
            self.driver, self.consensus, self.proposer, self.snapshotter, self._log, self.addresses
        )
        self.quorum = QuorumService(self.control, self.leadership, self.proposer)
        self.cluster = ClusterService(
            self.leadership, self.proposer, self._balancer, self._activity, settings.snapshot_leases
        )

    def _build_snapshotter(self, settings: ControllerSettings) -> Snapshotter:
        snapshotter = Snapshotter(
            self._log,
            self.image,
            self._tasks,
            self._runtime.clock,
            settings,
            self._runtime.telemetry,
            membership=lambda: self.driver.applied_membership,
            taken=self.driver.snapshot_taken,
            has_room=lambda: self.consensus.has_room,
        )
        self.driver.compaction.on_end(snapshotter.look)
        return snapshotter

    def _build_duties(self, settings: ControllerSettings) -> None:
        proposer, activity, telemetry = self.proposer, self._activity, self._runtime.telemetry
        self._duties: dict[str, LeaderDuty] = {}
        moves = move_driver.MoveDriver(proposer, activity, telemetry)
        self._add_duty("moves", moves.step, move_driver.WAKING)
        failovers = failover_driver.FailoverDriver(
            proposer, activity, self.leadership, self._runtime.clock, telemetry
        )
        self._add_duty("failovers", failovers.step, failover_driver.WAKING)
        drains = drain_driver.DrainDriver(proposer, activity, settings, telemetry)
        self._add_duty("drains", drains.step, drain_driver.WAKING)
        self._add_duty("balance", self._balancer.step, balancer.WAKING)
        self._add_duty("garbage-ages", GarbageAges(proposer, telemetry).step, ())
        compactions = compaction_driver.CompactionDriver(
            proposer,
            self._survey,
            self._wear,
            self._offering,
            self.leadership,
            settings.compaction,
            telemetry,
        )
        self._add_duty("compactions", compactions.step, compaction_driver.WAKING)
        leases = lease_driver.LeaseDriver(proposer, self.leadership, settings.snapshot_leases, telemetry)
        self._add_duty("snapshot-leases", leases.step, lease_driver.WAKING)
        reclaims = reclaim_driver.ReclaimDriver(proposer, self.leadership, self._runtime.clock, telemetry)
        self._add_duty("reclaims", reclaims.step, reclaim_driver.WAKING)

    def _add_duty(self, name: str, step: Step, kinds: Sequence[str]) -> None:
        duty = LeaderDuty(step, self.proposer, self.leadership, self._runtime.clock)
        self._duties[name] = duty
        self._committed.on_kinds(kinds, duty.wake)
        self._activity.on_left(duty.wake)

    def handlers(self) -> Mapping[str, Handler]:
        """Who answers, by method."""
        return {
            SESSION: self.sessions.handle,
            SUBSCRIBE: self.subscriptions.handle,
            QUORUM: self.quorum.handle,
            CLUSTER: self.cluster.handle,
            PEER: self.peers.handle,
        }

    def start(self) -> None:
        """Begin to take part, to execute operations while leading, and to watch for silence."""
        self._tasks.spawn(self._traffic.run(), "snapshots-received")
        self.driver.start()
        self._tasks.spawn(drive(self._lanes, self._executor, self.proposer, self._runtime.clock), "proposals")
        self._tasks.spawn(self._confirmed.run(), "confirmed-answers")
        self._tasks.spawn(self._observed.run(), "observed-time")
        self._tasks.spawn(self._activity.watch(self.image), "node-activity")
        for name, duty in self._duties.items():
            self._tasks.spawn(duty.run(), name)

    def close(self) -> None:
        """Take no part any more."""
        self.driver.close()

    def _appended(self, entries: Sequence[Entry]) -> None:
        self._opening.appended(entries)
        for entry in entries:
            if entry.membership is not None:
                self.addresses.learn_from(entry.data)

    def _learn(self, entries: Sequence[LogEntry]) -> None:
        self.first_commit.set()
        self._cluster_clock.stamped(self.image.cluster_time_ms)
        for entry in entries:
            members = members_in(entry.batch) if VOTERS_SET_TAG in entry.data else None
            if members is not None:
                self.addresses.learn(members)

    def _installed(self, image: MetadataImage) -> None:
        """A received snapshot took the place of everything before."""
        self.image.adopt(image)
        self._opening.restart()
        self.addresses.learn(members_of_rows(image[QUORUM_TABLE]))
        self._committed.restart()
        self.first_commit.set()

    def _incarnation(self) -> int:
        cluster = cluster_of(self.image)
        return cluster.incarnation if cluster is not None else 0

    def _cluster_time_ms(self) -> int:
        return self._cluster_clock.now_ms() if self.leadership.is_leading else self.image.cluster_time_ms

    def _show(self) -> None:
        telemetry = self._runtime.telemetry
        telemetry.gauge("ponor_controller_sessions", lambda: self.sessions.session_count)
        telemetry.gauge("ponor_controller_history_lost", lambda: float(bool(self.sessions.lost_history)))
        telemetry.gauge("ponor_controller_suspected_nodes", lambda: self._activity.suspected_count)
        telemetry.gauge("ponor_controller_subscriptions", lambda: self.subscriptions.subscriber_count)
        telemetry.gauge("ponor_controller_moves_under_way", lambda: len(self.image[MOVES]))
        telemetry.gauge("ponor_controller_committed_index", lambda: self.image.index)


def raft_limits(settings: ControllerSettings) -> RaftLimits:
    """Times in ticks, and bounds above those at which the proposer lets nobody in any more.

    Memory holds two intervals between snapshots (one is being written while the next one fills), what is kept behind a snapshot, and what is proposed.
    """
    entries = 2 * settings.snapshot_batches + settings.log_trailing_batches + 8 * settings.proposals_max
    size_bytes = (
        2 * settings.snapshot_bytes + settings.log_trailing_bytes_max + 8 * settings.proposals_bytes_max
    )
    return RaftLimits(
        election_ticks=max(2, round(settings.election_timeout_ms / 1000 / TICK_SECONDS)),
        heartbeat_ticks=max(1, round(settings.heartbeat_interval_ms / 1000 / TICK_SECONDS)),
        uncommitted_bytes_max=4 * settings.proposals_bytes_max,
        uncommitted_entries_max=4 * settings.proposals_max,
        window_entries_max=max(WINDOW_ENTRIES_MAX, entries),
        window_bytes_max=max(WINDOW_BYTES_MAX, size_bytes),
    )


def _address_book(
    options: ControllerOptions,
    identity: DirectoryIdentity,
    stored: StoredState,
    image: MetadataImage,
    own: Addresses,
) -> AddressBook:
    """What this start was told, with the ports that were really bound, and what the log says."""
    given = {number_of_node(member.node_id): member for member in options.voters}
    own_member = Member(identity.node_id, identity.directory_id.bytes, own.peer, own.service)
    given.setdefault(number_of_node(identity.node_id), own_member)
    book = AddressBook(given.values())
    book.learn(members_of_rows(image[QUORUM_TABLE]) or identity.initial_voters)
    for entry in stored.entries:
        if entry.membership is not None and entry.index > image.index:
            book.learn_from(entry.data)
    return book
