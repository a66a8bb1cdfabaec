"""What happens to a group: crashes, pauses, broken links, slow disks, transfers, and operators who change its membership.

What lives here: which of it happens, and to whom. All of it is drawn from the seed; after the end of the faults everything works again.
"""

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
COUP_MS_MAX = 50.0
OLDER_MS = (100.0, 1_000.0)


class Group(Protocol):
    """What faults can do."""

    @property
    def replicas(self) -> Mapping[ReplicaId, Replica]:
        """Everybody, running or not."""

    def crash(self, replica: Replica) -> None:
        """Power off."""

    def restart(self, replica: Replica) -> None:
        """Power on; nothing if it runs, or is retired."""

    def pause(self, replica: Replica, length_ms: float) -> None:
        """The process does nothing for a while, and then does not know."""

    def stall_disk(self, replica: Replica, length_ms: float) -> None:
        """No write ends for a while."""

    def free_space(self, replica: Replica) -> None:
        """The disk has space for snapshots again."""

    def cut(self, links: list[tuple[ReplicaId, ReplicaId]], length_ms: float) -> None:
        """Links are down."""

    def leads_alone(self, leader: Replica, follower: Replica) -> bool:
        """Whether the newest leader hears and is heard, knows everything that is committed, and nobody else takes itself for a leader."""

    def put_back(self, leader: Replica, victim: Replica, copy: RaftDisk) -> None:
        """A running voter stops, gets an older copy of its disk, starts, and hears the leader."""

    def add_blank(self, avoid: frozenset[int]) -> ReplicaId:
        """A machine with a blank disk, running, under none of these node ids."""

    def retire_removed(self) -> None:
        """Switch off for good who is no member any more, as committed."""

    def propose_change(self, leader: Replica, wanted: Membership) -> None:
        """Ask the leader for another membership."""

    def count(self, what: str) -> None:
        """For coverage."""


class Faults:
    """See the module."""

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
            "seclusion": self._seclusion,
            "full disk": self._full_disk,
            "older copy": self._older_copy,
        }

    def start(self) -> None:
        """Until `ended`."""
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
        """Mostly short, now and then long."""
        return length_ms_max * self._chance.random() ** 2

    def _victim(self) -> Replica | None:
        """Leaders twice as often as others."""
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
        """Everybody at once, and back one by one."""
        for replica in self._running():
            self._group.crash(replica)
            self._timeline.after(self._length_ms(DOWN_MS_MAX / 3), partial(self._group.restart, replica))

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._group.pause(victim, self._length_ms(PAUSE_MS_MAX))

    def _seclusion(self) -> None:
        """A leader stops with its machine and comes back behind a broken network: it counts few ticks, hears nobody, and still thinks that it leads."""
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
        """No snapshot succeeds: at one replica, or at all of them, so that the windows of the whole group fill up."""
        victim = self._victim()
        if victim is None:
            return
        length_ms = FULL_MS_MAX * self._chance.random()
        for replica in self._running() if self._chance.random() < 0.5 else [victim]:
            replica.has_space = False
            self._timeline.after(length_ms, partial(self._group.free_space, replica))

    def _partition(self) -> None:
        """One replica from all others, a line through the middle, or single links; in both directions or in one."""
        chance, everybody = self._chance, list(self._group.replicas)
        if chance.random() < 0.6:
            victim = self._leader() or self._victim()
            side = {victim.own} if victim is not None else set()
        else:
            side = {own for own in everybody if chance.random() < 0.5}
        away = [(one, other) for one in everybody for other in everybody if one in side and other not in side]
        back = [(other, one) for one, other in away]
        links = chance.choice(
            (away, back, away + back, [link for link in away + back if chance.random() < 0.5])
        )
        self._group.cut(links, self._length_ms(CUT_MS_MAX))

    # --- operators ---

    def _older_copy(self) -> None:
        """A minority of the voters hears the leader no more; what is committed meanwhile is on the disks of the others, and then one of these is an older copy of itself."""
        leader = self._leader()
        if leader is None or leader.node is None:
            return
        membership = leader.node.membership
        others = [each for each in self._running() if each.own in membership.voters and each is not leader]
        if len(others) < 2:
            return
        victim, *rest = self._chance.sample(others, len(others))
        deaf = rest[: max(1, len(membership.voters) - membership.quorum)]
        links = [link for each in deaf for link in ((leader.own, each.own), (each.own, leader.own))]
        length_ms = self._chance.uniform(*OLDER_MS)
        self._group.cut(links, length_ms)
        self._timeline.after(length_ms * 0.9, partial(self._put_back, victim, victim.disk.copy()))

    def _put_back(self, victim: Replica, copy: RaftDisk) -> None:
        """Often the leader dies soon.

        A voter that lost what it acknowledged can know it only from a leader, so there is one, it is the only one, and the voter hears it first.
        """
        leader = self._leader()
        if self.ended or leader is None or leader is victim or not self._group.leads_alone(leader, victim):
            return
        self._group.put_back(leader, victim, copy)
        if self._chance.random() < 0.7:
            self._timeline.after(self._length_ms(COUP_MS_MAX), partial(self._group.crash, leader))
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
        """Another membership, not always an allowed one."""
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
