"""A run of one Raft group. Faults are drawn from the seed. After the faults end, the group must recover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from traceback import extract_tb
from typing import Final

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.errors import NotLeaderError, ProposalsFullError
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import Message
from ponor_raft.node import RaftNode
from ponor_raft.ready import Leadership, ReadReady, Role
from ponor_simulation.simulation import SimulationFailedError
from ponor_simulation.trace import Trace

from ponor_cluster_simulation.histories.linearizability import find_anomalies
from ponor_cluster_simulation.raft_cluster.clients import Clients
from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_cluster_simulation.raft_cluster.faults import Faults
from ponor_cluster_simulation.raft_cluster.invariants import RaftInvariants
from ponor_cluster_simulation.raft_cluster.network import RaftNetwork
from ponor_cluster_simulation.raft_cluster.replica import Replica, blank_disk
from ponor_cluster_simulation.raft_cluster.swarm import Swarm
from ponor_cluster_simulation.raft_cluster.timeline import Timeline

TICK_MS: Final = 50.0
DISK_MS: Final = (0.2, 4.0)
SAFETY_MS: Final = 30_000.0
LIVENESS_MS_MAX: Final = 30_000.0
LEADER_CRASH_MS_MAX: Final = 40.0
BACKLOG_MAX: Final = 5_000
"""Maximum number of events that wait for a paused process; later events are lost."""
VALIDATED: Final = 0.05
"""Share of the calls after which the run validates the Raft core. A validation reads the whole log."""
UNEXPECTED_DROPS: Final = (
    "conflict with a committed entry",
    "second leader in one term",
    "commit beyond the log",
    "acknowledgement beyond the log",
)
"""Reasons for dropping a message that never occur in a correct group."""


class RaftCluster:
    """One run; `coverage` counts its events."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace = Trace()
        self.coverage: Counter[str] = Counter()
        self.timeline = Timeline()
        self._chance = Random(f"raft {seed}")
        self.swarm = Swarm.draw(self._chance)
        self._replicas: dict[ReplicaId, Replica] = {}
        self._paused: dict[ReplicaId, list[Callable[[], None]]] = {}
        self._disk_free_ms: dict[ReplicaId, float] = {}
        self._tick_ms: dict[ReplicaId, float] = {}
        self._retired: set[ReplicaId] = set()
        self._removed: dict[ReplicaId, None] = {}
        self._meets: tuple[ReplicaId, ReplicaId] | None = None
        """A leader and a voter that exchange messages without delay; the voter's writes also end without
        delay.
        """
        self.invariants = RaftInvariants(lambda: ((each.own, each.disk) for each in self._replicas.values()))
        self.network = RaftNetwork(self.timeline, self._chance, self.swarm, self._deliver, self._unreachable)
        self.clients = Clients(
            self.timeline, self._chance, self.swarm.clients, self._running, self.invariants
        )
        self.faults = Faults(self, self.swarm, self.timeline, self._chance)
        initial = Membership(tuple(ReplicaId(1 + at, _directory(1)) for at in range(self.swarm.voters)))
        self._settled = initial
        """The newest committed membership that a replica applied."""
        for own in initial.voters:
            self._add(own, initial)

    @property
    def replicas(self) -> Mapping[ReplicaId, Replica]:
        """All replicas, including stopped and retired ones."""
        return self._replicas

    def run(self) -> None:
        """Run from the first start to the last check.

        Raises:
            SimulationFailedError: an invariant does not hold, or the group does not recover.
        """
        try:
            for replica in list(self._replicas.values()):
                self.restart(replica)
            self.clients.start()
            self.faults.start()
            self.timeline.run_until(SAFETY_MS)
            self._end_faults()
            self._require_recovery()
            self._judge()
        except AssertionError as broken:
            raise SimulationFailedError(self._story(str(broken) or _place_of(broken))) from broken

    def _story(self, what: str) -> str:
        lines = "\n".join(f"  {line}" for line in self.trace.tail()[-60:])
        return f"seed {self.seed}: {what}\n{self.swarm}\n{self.trace.events} events, the last ones:\n{lines}"

    # --- recovery and judgement ---

    def _end_faults(self) -> None:
        """End all faults and start all replicas."""
        self.faults.ended = self.clients.stopped = self.network.calm = True
        self.network.heal()
        self.retire_removed()
        for replica in list(self._replicas.values()):
            self._resume(replica)
            self.free_space(replica)
            self._disk_free_ms[replica.own] = self.timeline.now_ms
            self.restart(replica)

    def _require_recovery(self) -> None:
        """Require a leader, a new committed command, and equal states of all members."""
        deadline_ms = self.timeline.now_ms + LIVENESS_MS_MAX
        target = 0
        while self.timeline.now_ms < deadline_ms:
            self.timeline.run_until(self.timeline.now_ms + TICK_MS)
            leaders = [each for each in self._running() if each.node is not None and each.node.is_leader]
            for leader in leaders:
                target = target or self._propose_fresh(leader)
                members = leader.node.membership.members if leader.node is not None else ()
                states = [self._replicas[own].state for own in members]
                if target and all(state.index >= target for state in states) and self._is_committed(leader):
                    assert len({state.digest for state in states if state.index == leader.state.index}) == 1
                    self.coverage["recovery ms"] = int(self.timeline.now_ms - SAFETY_MS)
                    return
        shown = {
            each.name: (each.state.index, each.node and each.node.role.value)
            for each in self._replicas.values()
        }
        raise AssertionError(
            f"no recovery {LIVENESS_MS_MAX:g} ms after all faults ended: {shown}, waiting for index {target}"
        )

    def _propose_fresh(self, leader: Replica) -> int:
        """Propose a command. Return its index; 0 if the leader has no room or transfers leadership."""
        assert leader.node is not None
        if not leader.node.has_room:
            return 0
        try:
            index = leader.node.propose(b"").index
        except (NotLeaderError, ProposalsFullError):
            return 0
        leader.pump()
        return index

    def _is_committed(self, leader: Replica) -> bool:
        return leader.node is not None and leader.node.membership_index <= leader.node.commit_index

    def _judge(self) -> None:
        self.clients.finish()
        anomalies = find_anomalies(self.clients.history)
        assert not anomalies, f"not linearizable: {anomalies[0]}"
        self.coverage.update(self.clients.counts)
        self.coverage.update({f"message {what}": count for what, count in self.network.counts.items()})
        self.coverage["operations"] = len(self.clients.history)
        self.coverage["events"] = self.timeline.events
        self.coverage["committed"] = self.invariants.commit_index

    # --- machines ---

    def _add(self, own: ReplicaId, initial: Membership | None = None) -> Replica:
        disk = blank_disk() if initial is None else blank_disk(initial)
        replica = Replica(own, disk, self.swarm.limits, self.swarm.snapshots, self._chance, self)
        disk.durable = partial(self._hard_state, replica)
        self._replicas[own] = replica
        self._tick_ms[own] = TICK_MS * (1 + self.swarm.drift * (self._chance.random() - 0.5))
        self._disk_free_ms[own] = self.timeline.now_ms
        return replica

    def add_blank(self, avoid: frozenset[int]) -> ReplicaId:
        """Start a machine with a blank disk. It may reuse a retired node id with a new directory
        (KAFKA-14077).
        """
        again = sorted(own for own in self._retired if own.node_id not in avoid)
        alive = {own.node_id for own in self._replicas if own not in self._retired}
        again = [own for own in again if own.node_id not in alive]
        if again and self._chance.random() < 0.5:
            node_id = self._chance.choice(again).node_id
            self.coverage["node came back with a blank disk"] += 1
        else:
            node_id = max(own.node_id for own in self._replicas) + 1
        directories = [own.directory_id[-1] for own in self._replicas if own.node_id == node_id]
        own = ReplicaId(node_id, _directory(max(directories, default=0) + 1))
        self.restart(self._add(own))
        return own

    def _running(self) -> list[Replica]:
        """Replicas that run and are not paused."""
        return [
            each for each in self._replicas.values() if each.node is not None and each.own not in self._paused
        ]

    def crash(self, replica: Replica) -> None:
        if replica.node is None:
            return
        self._note(replica, "crashes", replica.disk.writes)
        was_leader = replica.node.is_leader
        for reason in UNEXPECTED_DROPS:
            assert not replica.node.dropped[reason], f"{replica.name} met a {reason}"
        replica.crash()
        self._paused.pop(replica.own, None)
        if was_leader and self._chance.random() < 0.5:
            for other in self._running():
                other.call(partial(_suspect, leader=replica.own))

    def restart(self, replica: Replica) -> None:
        if replica.node is not None or replica.own in self._retired:
            return
        replica.start()
        self._note(replica, "starts", replica.disk.last_index)
        self._disk_free_ms[replica.own] = max(self._disk_free_ms[replica.own], self.timeline.now_ms)
        self._tick_later(replica, replica.life)

    def leads_alone(self, leader: Replica, follower: Replica) -> bool:
        node = leader.node
        assert node is not None
        others = [each for each in self._replicas.values() if each is not leader]
        return (
            leader.own not in self._paused
            and node.commit_index == self.invariants.commit_index
            and follower.own in node.membership.voters
            and self.network.connects(leader.own, follower.own)
            and all(each.disk.hard_state.term <= node.term for each in others)
            and not any(each.node is not None and each.node.is_leader for each in others)
        )

    def put_back(self, leader: Replica, victim: Replica, copy: RaftDisk) -> None:
        self.crash(victim)
        self.network.break_streams(victim.own)
        victim.disk.put_back(copy)
        self.coverage["lost committed entries"] += copy.last_index < self.invariants.commit_index
        self._note(victim, "is put back to", copy.last_index, "of", self.invariants.commit_index)
        self.invariants.expect_catch_up(victim.own)
        self._meets = (leader.own, victim.own)
        try:
            self.restart(victim)
            leader.call(lambda node: node.peer_restarted(victim.own))
            while victim.disk.writes:
                victim.disk.end_oldest()
        finally:
            self._meets = None

    def pause(self, replica: Replica, length_ms: float) -> None:
        if replica.node is None or replica.own in self._paused:
            return
        self._note(replica, "pauses", int(length_ms))
        self._paused[replica.own] = []
        self.timeline.after(length_ms, partial(self._resume_life, replica, replica.life))

    def _resume_life(self, replica: Replica, life: int) -> None:
        if replica.life == life:
            self._resume(replica)

    def _resume(self, replica: Replica) -> None:
        for what in self._paused.pop(replica.own, []):
            what()

    def stall_disk(self, replica: Replica, length_ms: float) -> None:
        free_ms = self._disk_free_ms[replica.own]
        self._disk_free_ms[replica.own] = max(free_ms, self.timeline.now_ms) + length_ms

    def free_space(self, replica: Replica) -> None:
        replica.has_space = True
        if replica.node is not None and replica.own not in self._paused:
            replica.pump()  # without new commits nothing else would trigger the snapshot

    def cut(self, links: list[tuple[ReplicaId, ReplicaId]], length_ms: float) -> None:
        for link in links:
            self.network.cut(*link)
        self.trace.record(self.timeline.now_ms, "network", "cut", len(links), int(length_ms))
        self.timeline.after(length_ms, self.network.heal)

    def retire_removed(self) -> None:
        """Stop about half of the removed replicas, or all of them after the faults. The others continue and
        must not disturb the members.
        """
        for own in list(self._removed):
            replica = self._replicas[own]
            if self._chance.random() < 0.5 or self.faults.ended:
                self.crash(replica)
                self._retired.add(own)
                del self._removed[own]
                self.coverage["retired"] += 1

    def propose_change(self, leader: Replica, wanted: Membership) -> None:
        node = leader.node
        assert node is not None
        before, commit = node.membership, node.commit_index
        opened = commit > 0 and self.invariants.committed[commit - 1][0] == node.term
        settled = opened and node.membership_index <= commit
        node.propose(b"", wanted)
        self.invariants.changes(leader, node, before, wanted, settled)
        self._note(leader, "changes the membership to", *(each.node_id for each in wanted.voters))
        leader.pump()

    def count(self, what: str) -> None:
        self.coverage[what] += 1

    # --- time ---

    def _live(self, replica: Replica, life: int, what: Callable[[], None]) -> None:
        """Execute an event of one life of a process: now, after the pause of the process, or never if this
        life has ended.
        """
        if replica.life != life or replica.node is None:
            return
        backlog = self._paused.get(replica.own)
        if backlog is None:
            what()
        elif len(backlog) < BACKLOG_MAX:
            backlog.append(partial(self._live, replica, life, what))

    def _tick_later(self, replica: Replica, life: int) -> None:
        def tick() -> None:
            if replica.life != life or replica.node is None:
                return
            if replica.own not in self._paused:  # ticks of a pause are merged into one
                replica.call(RaftNode.tick)
            self._tick_later(replica, life)

        self.timeline.after(self._tick_ms[replica.own], tick)

    def write_begun(self, replica: Replica) -> None:
        if self._meets is not None and replica.own == self._meets[1]:
            return
        delay_ms = DISK_MS[0] + (DISK_MS[1] - DISK_MS[0]) * self._chance.random()
        at_ms = max(self._disk_free_ms[replica.own], self.timeline.now_ms) + delay_ms
        self._disk_free_ms[replica.own] = at_ms
        self.timeline.at(at_ms, partial(self._live, replica, replica.life, replica.disk.end_oldest))

    def _deliver(self, message: Message) -> None:
        replica = self._replicas.get(message.to)
        if replica is not None:
            self._live(replica, replica.life, partial(self._step, replica, message))

    def _step(self, replica: Replica, message: Message) -> None:
        self.trace.record(
            self.timeline.now_ms, replica.name, type(message).__name__, message.sender.node_id, message.term
        )
        replica.call(lambda node: node.step(message))

    def _unreachable(self, sender: ReplicaId, to: ReplicaId) -> None:
        replica = self._replicas[sender]
        self._live(replica, replica.life, lambda: replica.call(lambda node: node.unreachable(to)))

    # --- events of replicas ---

    def send(self, replica: Replica, message: Message) -> None:
        self.invariants.sends(replica, message)
        if (message.sender, message.to) == self._meets:
            self._step(self._replicas[message.to], message)
        else:
            self.network.send(message)

    def leadership_changed(self, replica: Replica, leadership: Leadership) -> None:
        if leadership.role is Role.LEADER and replica.node is not None:
            self._note(replica, "leads term", leadership.term)
            self.coverage["elected"] += 1
            self.invariants.leads(replica, replica.node, leadership.term)
            if not self.faults.ended and self._chance.random() < self.swarm.leader_crash:
                self.timeline.after(
                    LEADER_CRASH_MS_MAX * self._chance.random(),
                    partial(self._crash_leader, replica, replica.life),
                )

    def _crash_leader(self, replica: Replica, life: int) -> None:
        if replica.life == life and not self.faults.ended:
            self.coverage["leader crash"] += 1
            self.crash(replica)
            self.timeline.after(
                LEADER_CRASH_MS_MAX * 20 * self._chance.random(), partial(self.restart, replica)
            )

    def wrote(self, replica: Replica, entries: tuple[Entry, ...], term_before: int | None) -> None:
        if entries[0].index <= replica.disk.before[0] + len(replica.disk.entries):
            self.coverage["log cut"] += 1
        self.invariants.wrote(replica, entries, term_before)

    def applied(self, replica: Replica, entry: Entry) -> None:
        self.invariants.applied(replica, entry)
        if entry.membership is not None and replica.state.index == self.invariants.commit_index:
            self._settle(entry.membership)
        self.clients.applied(replica, entry)

    def _settle(self, membership: Membership) -> None:
        """Note a newly committed membership: replicas outside it may be retired."""
        self.coverage["membership committed"] += 1
        for own in self._settled.members:
            if own not in membership.members:
                self._removed.setdefault(own)
        for own in membership.members:
            self._removed.pop(own, None)
        self._settled = membership

    def installed(self, replica: Replica) -> None:
        self._note(replica, "installs a snapshot at", replica.state.index)
        self.coverage["snapshot installed"] += 1
        self.clients.progressed(replica)

    def snapshot_stored(self, replica: Replica, meta: SnapshotMeta) -> None:
        self.coverage["snapshot stored"] += 1
        self.invariants.snapshot(replica, meta)

    def read_ready(self, replica: Replica, read: ReadReady) -> None:
        self.clients.read_ready(replica, read)

    def look(self, replica: Replica) -> None:
        assert replica.node is not None
        self.invariants.look(replica, replica.node)

    def pumped(self, replica: Replica) -> None:
        node = replica.node
        assert node is not None
        if self._chance.random() < VALIDATED:
            node.validate()

    def _hard_state(self, replica: Replica, before: HardState, after: HardState) -> None:
        self.invariants.hard_state(replica.name, before, after)

    def _note(self, replica: Replica, what: str, *details: object) -> None:
        self.trace.record(self.timeline.now_ms, replica.name, what, *details)


def _place_of(broken: AssertionError) -> str:
    """The position of an assert without a message."""
    where = extract_tb(broken.__traceback__)[-1]
    return f"assert in {where.name}: {where.line}"


def _directory(number: int) -> bytes:
    return bytes(15) + bytes([number])


def _suspect(node: RaftNode, leader: ReplicaId) -> None:
    node.suspect_leader(leader)


def run_raft(seed: int) -> RaftCluster:
    """Run one seed; see `RaftCluster.run`."""
    cluster = RaftCluster(seed)
    cluster.run()
    return cluster
