"""Build the parts of one controller and connect them.

`app` recovers the log and binds the ports before it creates a `Controller`.
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
from ponor_controller.domains.compaction import duty as compaction_duty
from ponor_controller.domains.compaction.garbage_ratio import GarbageRatio
from ponor_controller.domains.compaction.offering import Offering
from ponor_controller.domains.compaction.survey import Survey
from ponor_controller.domains.leases import duty as lease_duty
from ponor_controller.domains.moves import duty as move_duty
from ponor_controller.domains.nodes import drain_duty, failover_duty
from ponor_controller.domains.objects import reclaim_duty
from ponor_controller.domains.objects.garbage_ages import GarbageAges
from ponor_controller.domains.quorum.first_records import QuorumRecords
from ponor_controller.domains.quorum.raft_quorum import RaftQuorum
from ponor_controller.kernel.answers import Answers, ConfirmedAnswers
from ponor_controller.kernel.cluster_clock import ClusterClock, Opening
from ponor_controller.kernel.executor import Executor, execute_operations
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.leader_duty import LeaderDuty, Step
from ponor_controller.kernel.leadership import ControllerLeadership
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.kernel.snapshotter import Snapshotter
from ponor_controller.operations import validator_of_all
from ponor_controller.options import ControllerOptions
from ponor_controller.server.cluster_service import ClusterService
from ponor_controller.server.committed_batches import CommittedBatches
from ponor_controller.server.quorum_service import QuorumService
from ponor_controller.server.sessions.outbox import AnswerTurn
from ponor_controller.server.sessions.session_service import SessionService
from ponor_controller.server.subscriptions.image_source import ImageSource
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService
from ponor_controller.settings import ControllerSettings
from ponor_controller.startup.recovery import Recovered

ABSENCES_PER_SESSION_TIMEOUT: Final = 4
"""Absences of this process count as silence of the nodes only if they are shorter than 1/4 of a session
timeout."""


class Controller:
    """The parts of one controller."""

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
        """Set after the first commit: an empty log is an error from then on."""
        self.addresses = _address_book(options, identity, stored, recovered.image, own_addresses)
        self._build_consensus(settings, identity, stored, peer_network, own_addresses)
        self._build_proposals(settings)
        records = QuorumRecords(identity, self.addresses, self.proposer, runtime)
        self.leadership = ControllerLeadership(
            self.consensus,
            self.proposer,
            self._answers,
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
            identity, self._incarnation, self.addresses, own_addresses, peer_network, runtime, self._tasks
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
        self._wear = GarbageRatio(self.image, settings.compaction)
        self._offering = Offering(self.image, self._survey, self._wear, settings.compaction)
        self._answers = Answers(self.proposer.commits, self._confirmed, runtime.telemetry)
        self._executor = Executor(
            self.proposer,
            self._answers,
            validator_of_all(self._offering),
            settings,
            runtime.randomness,
            self._activity.is_suspected,
            runtime.telemetry,
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
        self.driver.on_commit(self._track)
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
        self.driver.compaction.on_end(snapshotter.begin_if_due)
        return snapshotter

    def _build_duties(self, settings: ControllerSettings) -> None:
        proposer, activity, telemetry = self.proposer, self._activity, self._runtime.telemetry
        self._duties: dict[str, LeaderDuty] = {}
        moves = move_duty.MoveDuty(proposer, activity, telemetry)
        self._add_duty("moves", moves.step, move_duty.WAKING)
        failovers = failover_duty.FailoverDuty(
            proposer, activity, self.leadership, self._runtime.clock, telemetry
        )
        self._add_duty("failovers", failovers.step, failover_duty.WAKING)
        drains = drain_duty.DrainDuty(proposer, activity, settings, telemetry)
        self._add_duty("drains", drains.step, drain_duty.WAKING)
        self._add_duty("balance", self._balancer.step, balancer.WAKING)
        self._add_duty("garbage-ages", GarbageAges(proposer, telemetry).step, ())
        compactions = compaction_duty.CompactionDuty(
            proposer,
            self._survey,
            self._wear,
            self._offering,
            self.leadership,
            settings.compaction,
            telemetry,
        )
        self._add_duty("compactions", compactions.step, compaction_duty.WAKING)
        leases = lease_duty.LeaseDuty(proposer, self.leadership, settings.snapshot_leases, telemetry)
        self._add_duty("snapshot-leases", leases.step, lease_duty.WAKING)
        reclaims = reclaim_duty.ReclaimDuty(proposer, self.leadership, self._runtime.clock, telemetry)
        self._add_duty("reclaims", reclaims.step, reclaim_duty.WAKING)

    def _add_duty(self, name: str, step: Step, kinds: Sequence[str]) -> None:
        duty = LeaderDuty(step, self.proposer, self.leadership, self._runtime.clock)
        self._duties[name] = duty
        self._committed.on_kinds(kinds, duty.wake)
        self._activity.on_left(duty.wake)

    def handlers(self) -> Mapping[str, Handler]:
        """Handlers of connections, by method."""
        return {
            SESSION: self.sessions.handle,
            SUBSCRIBE: self.subscriptions.handle,
            QUORUM: self.quorum.handle,
            CLUSTER: self.cluster.handle,
            PEER: self.peers.handle,
        }

    def start(self) -> None:
        """Start consensus, execution of operations, duties and the check for silent nodes."""
        self._tasks.spawn(self._traffic.run(), "snapshots-received")
        self.driver.start()
        self._tasks.spawn(
            execute_operations(self._lanes, self._executor, self.proposer, self._runtime.clock), "proposals"
        )
        self._tasks.spawn(self._confirmed.run(), "confirmed-answers")
        self._tasks.spawn(self._observed.run(), "observed-time")
        self._tasks.spawn(self._activity.watch(self.image), "node-activity")
        for name, duty in self._duties.items():
            self._tasks.spawn(duty.run(), name)

    def close(self) -> None:
        """Stop the Raft driver."""
        self.driver.close()

    def _appended(self, entries: Sequence[Entry]) -> None:
        self._opening.appended(entries)
        for entry in entries:
            if entry.membership is not None:
                self.addresses.set_logged_from(entry.data)

    def _track(self, entries: Sequence[LogEntry]) -> None:
        self.first_commit.set()
        self._cluster_clock.stamped(self.image.cluster_time_ms)
        for entry in entries:
            members = members_in(entry.batch) if VOTERS_SET_TAG in entry.data else None
            if members is not None:
                self.addresses.set_logged(members)

    def _installed(self, image: MetadataImage) -> None:
        """A received snapshot replaced the image and the log before it."""
        self.image.adopt(image)
        self._opening.restart()
        self.addresses.set_logged(members_of_rows(image[QUORUM_TABLE]))
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
    """Limits of the Raft core: timeouts in ticks, and bounds larger than those of the proposer.

    The core must hold in memory the entries of two snapshot intervals (one snapshot is written during the
    next interval), the entries kept before a snapshot, and proposed entries.
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
    """Build the address book from the options, the bound ports of this controller, and the log."""
    given = {number_of_node(member.node_id): member for member in options.voters}
    own_member = Member(identity.node_id, identity.directory_id.bytes, own.peer, own.service)
    given.setdefault(number_of_node(identity.node_id), own_member)
    book = AddressBook(given.values())
    book.set_logged(members_of_rows(image[QUORUM_TABLE]) or identity.initial_voters)
    for entry in stored.entries:
        if entry.membership is not None and entry.index > image.index:
            book.set_logged_from(entry.data)
    return book
