"""Faults of a Raft group: crashes, pauses, cut links, slow and full disks, transfers, membership changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as replaced
from functools import partial
from random import Random
from typing import Protocol

from ponor_raft.errors import MembershipChangeError, NotLeaderError, ProposalsFullError, TransferError
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.node import RaftNode

from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_cluster_simulation.raft_cluster.replica import Replica
from ponor_cluster_simulation.raft_cluster.swarm import Swarm
from ponor_cluster_simulation.raft_cluster.timeline import Timeline

MEMBERS_MAX = 6
DOWN_MS_MAX = 3_000.0
PAUSE_MS_MAX = 4_000.0
CUT_MS_MAX = 4_000.0
SLOW_MS_MAX = 2_500.0
FULL_MS_MAX = 15_000.0
LEADER_CRASH_MS_MAX = 50.0
OLDER_MS = (100.0, 1_000.0)


class Group(Protocol):
    """The operations of a group that faults use."""

    @property
    def replicas(self) -> Mapping[ReplicaId, Replica]:
        """All replicas, also stopped ones."""

    def crash(self, replica: Replica) -> None:
        """Cut the power of a replica."""

    def restart(self, replica: Replica) -> None:
        """Start a replica; no effect if it runs or is retired."""

    def pause(self, replica: Replica, length_ms: float) -> None:
        """Pause a process."""

    def stall_disk(self, replica: Replica, length_ms: float) -> None:
        """Delay the ends of all writes."""

    def free_space(self, replica: Replica) -> None:
        """End a full disk: the replica can store snapshots again."""

    def cut(self, links: list[tuple[ReplicaId, ReplicaId]], length_ms: float) -> None:
        """Cut links."""

    def leads_alone(self, leader: Replica, follower: Replica) -> bool:
        """Whether `leader` is the only and newest leader, is connected to `follower`, and has the highest
        commit index.
        """

    def put_back(self, leader: Replica, victim: Replica, copy: RaftDisk) -> None:
        """Replace a voter's disk by an older copy and restart it connected to the leader."""

    def add_blank(self, avoid: frozenset[int]) -> ReplicaId:
        """Start a machine with a blank disk under a node id that is not in `avoid`."""

    def retire_removed(self) -> None:
        """Stop replicas that are removed by a committed membership."""

    def propose_change(self, leader: Replica, wanted: Membership) -> None:
        """Propose a membership to the leader."""

    def count(self, what: str) -> None:
        """Count an event for coverage."""


class Faults:
    """Draws and executes faults until `ended`."""

    def __init__(self, group: Group, swarm: Swarm, timeline: Timeline, chance: Random) -> None:
        self._group = group
        self._swarm = swarm
        self._timeline = timeline
        self._chance = chance
        self.ended = False
        self._kinds: dict[str, Callable[[], None]] = {
            "partition": self._partition,
            "crash": self._crash,
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "change": self._change,
            "transfer": self._transfer,
            "blackout": self._blackout,
            "seclusion": self._isolation,
            "full disk": self._full_disk,
            "older copy": self._older_copy,
        }

    def start(self) -> None:
        """Execute faults until `ended`."""
        if self._swarm.faults:
            self._later()

    def _later(self) -> None:
        self._timeline.after(2 * self._swarm.fault_every_ms * self._chance.random(), self._happen)

    def _happen(self) -> None:
        if self.ended:
            return
        kind = self._chance.choice(self._swarm.faults)
        self._group.count(kind)
        self._kinds[kind]()
        self._later()

    def _running(self) -> list[Replica]:
        return [each for each in self._group.replicas.values() if each.node is not None]

    def _length_ms(self, length_ms_max: float) -> float:
        """Draw a duration; most are short."""
        return length_ms_max * self._chance.random() ** 2

    def _victim(self) -> Replica | None:
        """Draw a running replica; leaders are more likely."""
        running = self._running()
        leaders = [each for each in running if each.node is not None and each.node.is_leader]
        if leaders and self._chance.random() < 0.4:
            return self._chance.choice(leaders)
        return self._chance.choice(running) if running else None

    def _crash(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._group.crash(victim)
            self._timeline.after(self._length_ms(DOWN_MS_MAX), partial(self._group.restart, victim))

    def _blackout(self) -> None:
        """Crash all replicas at once and restart them one by one."""
        for replica in self._running():
            self._group.crash(replica)
            self._timeline.after(self._length_ms(DOWN_MS_MAX / 3), partial(self._group.restart, replica))

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._group.pause(victim, self._length_ms(PAUSE_MS_MAX))

    def _isolation(self) -> None:
        """Pause a leader and cut its links for twice as long.

        When the leader resumes, it has counted few ticks, receives no messages, and still acts as the leader.
        """
        leader = self._leader()
        if leader is None:
            return
        length_ms = self._length_ms(PAUSE_MS_MAX)
        others = [own for own in self._group.replicas if own != leader.own]
        links = [(leader.own, other) for other in others] + [(other, leader.own) for other in others]
        self._group.cut(links, 2 * length_ms)
        self._group.pause(leader, length_ms)

    def _slow_disk(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._group.stall_disk(victim, self._length_ms(SLOW_MS_MAX))

    def _full_disk(self) -> None:
        """Refuse snapshots at one replica, or at all of them so that every window fills."""
        victim = self._victim()
        if victim is None:
            return
        length_ms = FULL_MS_MAX * self._chance.random()
        for replica in self._running() if self._chance.random() < 0.5 else [victim]:
            replica.has_space = False
            self._timeline.after(length_ms, partial(self._group.free_space, replica))

    def _partition(self) -> None:
        """Cut the links of one replica or of a random set of replicas, in one or both directions, or only
        some of them.
        """
        chance, replicas = self._chance, list(self._group.replicas)
        if chance.random() < 0.6:
            victim = self._leader() or self._victim()
            side = {victim.own} if victim is not None else set()
        else:
            side = {own for own in replicas if chance.random() < 0.5}
        away = [(one, other) for one in replicas for other in replicas if one in side and other not in side]
        back = [(other, one) for one, other in away]
        links = chance.choice(
            (away, back, away + back, [link for link in away + back if chance.random() < 0.5])
        )
        self._group.cut(links, self._length_ms(CUT_MS_MAX))

    # --- operations on the group ---

    def _older_copy(self) -> None:
        """Disconnect a minority of the voters, and later restore another voter's disk to its present
        contents.

        Entries that are committed in the meantime are on the disks of the other voters, but not in the copy.
        """
        leader = self._leader()
        if leader is None or leader.node is None:
            return
        membership = leader.node.membership
        others = [each for each in self._running() if each.own in membership.voters and each is not leader]
        if len(others) < 2:
            return
        victim, *rest = self._chance.sample(others, len(others))
        unreachable = rest[: max(1, len(membership.voters) - membership.quorum)]
        links = [link for each in unreachable for link in ((leader.own, each.own), (each.own, leader.own))]
        length_ms = self._chance.uniform(*OLDER_MS)
        self._group.cut(links, length_ms)
        self._timeline.after(length_ms * 0.9, partial(self._put_back, victim, victim.disk.copy()))

    def _put_back(self, victim: Replica, copy: RaftDisk) -> None:
        """Restore the copy; soon after, often crash the leader, and sometimes also the voter.

        Only a leader's message can inform a voter that it lost acknowledged entries. There must be exactly
        one leader, and the voter must receive a message of this leader first.
        """
        leader = self._leader()
        if self.ended or leader is None or leader is victim or not self._group.leads_alone(leader, victim):
            return
        self._group.put_back(leader, victim, copy)
        if self._chance.random() < 0.7:
            self._timeline.after(self._length_ms(LEADER_CRASH_MS_MAX), partial(self._group.crash, leader))
            self._timeline.after(DOWN_MS_MAX, partial(self._group.restart, leader))
            if self._chance.random() < 0.5:
                self._group.crash(victim)
                self._group.restart(victim)

    def _leader(self) -> Replica | None:
        leaders = [each for each in self._running() if each.node is not None and each.node.is_leader]
        return self._chance.choice(leaders) if leaders else None

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is None or leader.node is None:
            return
        to = self._chance.choice(leader.node.membership.members)
        try:
            leader.call(lambda node: node.transfer(to))
        except (TransferError, NotLeaderError):
            self._group.count("transfer refused")

    def _change(self) -> None:
        self._group.retire_removed()
        leader = self._leader()
        if leader is None or leader.node is None:
            return
        wanted = self._wanted(leader.node)
        if wanted is None:
            return
        try:
            self._group.propose_change(leader, wanted)
        except (MembershipChangeError, NotLeaderError, ProposalsFullError) as refused:
            self._group.count(type(refused).__name__)

    def _wanted(self, node: RaftNode) -> Membership | None:
        """Draw another membership, sometimes an invalid one."""
        chance, present = self._chance, node.membership
        voters, learners = present.voters, present.learners
        kind = chance.choice(("add", "promote", "promote", "remove", "drop", "two at once"))
        if kind == "add" and len(present.members) < MEMBERS_MAX:
            newcomer = self._group.add_blank(frozenset(each.node_id for each in present.members))
            return replaced(present, learners=tuple(sorted((*learners, newcomer))))
        if kind == "promote" and learners:
            chosen = chance.choice(learners)
            left = tuple(each for each in learners if each != chosen)
            return Membership(tuple(sorted((*voters, chosen))), left)
        if kind == "remove" and len(voters) > 1:
            chosen = chance.choice(voters)
            return replaced(present, voters=tuple(each for each in voters if each != chosen))
        if kind == "drop" and learners:
            chosen = chance.choice(learners)
            return replaced(present, learners=tuple(each for each in learners if each != chosen))
        if kind == "two at once" and len(voters) > 2:
            return replaced(present, voters=voters[: len(voters) - 2])
        return None
