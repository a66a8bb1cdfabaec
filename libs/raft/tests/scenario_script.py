"""Runs scripted scenarios: each command is followed by its expected outcome.

A script is a text file:

    # comment
    > command
      outcome            compared, or rewritten with PONOR_REWRITE_SCENARIOS=1

Replicas are named by their numbers, entries index@term. Nothing is random: messages wait until they
are delivered, disks write immediately unless they are stalled, and election timeouts are exactly
`election_ticks`. The oracle of the chaos tests checks every step.

    group 1 2 3 [reads_max=4 …]     voters of a new group, with limits
    blank 4                         a replica with an empty disk that is no member
    tick 1 [n] | tick all [n]       time passes
    pass [n]                        n times: tick all, then settle
    elect 1                         all suspect their leader, 1 alone ticks until it campaigns; then settle
    settle [aloud]                  deliver and write until nothing is pending; aloud: print every message
    deliver 1>2 [kind]              deliver waiting messages of a kind (append, vote, heartbeat, …), or all
    lose 1>2 [kind] | repeat 1>2 [kind] | keep 1>2 kind name | release name
    cut 1 2 | cut 1>2 | heal        the network
    stall 1 | write 1 [n] | flow 1  the disk: writes wait; n of them end; writes end at once again
    crash 1 [n] | restart 1         n of the waiting writes reach the disk
    propose 1 text | change 1 voters=1,2 learners=3
    read 1 | transfer 1 2 | suspect 1 2 | doubt (all suspect their leader) | unreachable 1 2 | stepdown 1
    snapshot 1 [trailing]           take one of what is applied, forget all entries but the last `trailing`
    show 1 | show all | progress 1
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ponor_raft.entry import Entry
from ponor_raft.errors import MembershipChangeError, NotLeaderError, ProposalsFullError, TransferError
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotAck,
    SnapshotChunk,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ponor_raft.node import RaftNode

from libs.raft.tests.raft_world import Member, World, replica_id

CALM = RaftLimits(
    election_ticks=10,
    heartbeat_ticks=3,
    transfer_ticks=10,
    snapshot_retry_ticks=10,
    promotion_lag_entries_max=2,
)
REFUSALS = (NotLeaderError, ProposalsFullError, MembershipChangeError, TransferError)
ROUNDS_MAX = 200

KINDS: dict[str, tuple[type, ...]] = {
    "vote": (VoteRequest,),
    "answer": (VoteResponse,),
    "append": (AppendRequest,),
    "ack": (AppendResponse,),
    "heartbeat": (HeartbeatRequest,),
    "echo": (HeartbeatResponse,),
    "timeout": (TimeoutNow,),
    "chunk": (SnapshotChunk,),
    "kept": (SnapshotAck,),
    "read": (ReadIndexRequest, ReadIndexResponse),
}


class CalmWorld(World):
    """A world without random events."""

    def __init__(self, voters: int, limits: RaftLimits) -> None:
        self.lines: list[str] = []
        self.stalled: set[ReplicaId] = set()
        super().__init__(0, voters, 0, limits)

    def chance_of(self, member: Member) -> Callable[[int], int]:
        return lambda _: 0

    def note(self, own: ReplicaId, text: str) -> None:
        self.lines.append(f"{own.node_id} {text}")

    def end_writes(self) -> bool:
        """Complete all writes that are not stalled; return whether there were any."""
        wrote = False
        for member in self.members.values():
            while member.writing and member.node is not None and member.own not in self.stalled:
                member.finish_write()
                wrote = True
        return wrote


class Script:
    """Runs one script, command by command."""

    def __init__(self) -> None:
        self._world = CalmWorld(1, CALM)
        self._kept: dict[str, list[Message]] = {}
        self._reads = 0

    def run(self, text: str) -> str:
        """Return the script with its actual outcomes."""
        result: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                result.append(line)
                result.extend(f"  {outcome}" for outcome in self._run_command(line[2:].split()))
            elif not line.startswith("  "):
                result.append(line)
        return "\n".join(result) + "\n"

    def _run_command(self, words: list[str]) -> list[str]:
        self._world.lines.clear()
        name, *arguments = words
        getattr(self, f"_{name}")(*arguments)
        if name != "stall":
            self._world.end_writes()
        self._world.check()
        lines, self._world.lines = self._world.lines, []
        return lines

    def _member(self, number: str) -> Member:
        return self._world.members[replica_id(int(number))]

    def _say(self, text: str) -> None:
        self._world.lines.append(text)

    def _attempt(self, number: str, action: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                action()
            except REFUSALS as refusal:
                self._say(f"{number} refuses: {refusal}")

        self._member(number).call(lambda _: guarded())

    # --- the group ---

    def _group(self, *words: str) -> None:
        numbers = [word for word in words if "=" not in word]
        settings = {
            name: int(value) for name, _, value in (word.partition("=") for word in words if "=" in word)
        }
        self._world = CalmWorld(len(numbers), replace(CALM, **settings))

    def _blank(self, number: str) -> None:
        own = replica_id(int(number))
        self._world.members[own] = Member(own, Membership(()), self._world)

    # --- time ---

    def _tick(self, whom: str, times: str = "1") -> None:
        members = list(self._world.members.values()) if whom == "all" else [self._member(whom)]
        for _ in range(int(times)):
            for member in members:
                member.call(lambda node: node.tick())

    def _pass(self, times: str = "1") -> None:
        for _ in range(int(times)):
            self._tick("all")
            self._settle()

    def _elect(self, number: str) -> None:
        self._doubt()
        self._tick(number, str(self._world.limits.election_ticks))
        self._settle()

    def _doubt(self) -> None:
        for member in self._world.members.values():
            if member.node is not None and member.node.leader is not None:
                member.call(_suspect_its_leader)

    # --- the network ---

    def _settle(self, mode: str = "") -> None:
        for _ in range(ROUNDS_MAX):
            messages, self._world.network = self._world.network, []
            if not messages and not self._world.end_writes():
                return
            for message in messages:
                self._hand_over(message, aloud=mode == "aloud")
        raise AssertionError("the group does not settle")

    def _hand_over(self, message: Message, *, aloud: bool) -> None:
        lost = (message.sender, message.to) in self._world.blocked or self._world.members[
            message.to
        ].node is None
        if aloud:
            self._say(in_words(message) + (" (lost)" if lost else ""))
        if not lost:
            self._world.hand_over(message)

    def _deliver(self, path: str, kind: str = "") -> None:
        for message in self._take(path, kind):
            self._hand_over(message, aloud=True)

    def _lose(self, path: str, kind: str = "") -> None:
        for message in self._take(path, kind):
            self._say(f"{in_words(message)} (lost)")

    def _repeat(self, path: str, kind: str = "") -> None:
        messages = self._take(path, kind)
        self._world.network += messages + messages

    def _keep(self, path: str, kind: str, name: str) -> None:
        self._kept[name] = self._take(path, kind)
        for message in self._kept[name]:
            self._say(f"{in_words(message)} (kept)")

    def _release(self, name: str) -> None:
        for message in self._kept.pop(name):
            self._hand_over(message, aloud=True)

    def _take(self, path: str, kind: str) -> list[Message]:
        sender, to = (replica_id(int(number)) for number in path.split(">"))
        types = KINDS[kind] if kind else tuple(each for types in KINDS.values() for each in types)
        taken = [
            one
            for one in self._world.network
            if one.sender == sender and one.to == to and isinstance(one, types)
        ]
        assert taken, f"no message {path} {kind} waits"
        self._world.network = [one for one in self._world.network if not any(one is other for other in taken)]
        return taken

    def _cut(self, *words: str) -> None:
        paths = [words[0].split(">")] if ">" in words[0] else [list(words), list(reversed(words))]
        self._world.blocked |= {(replica_id(int(sender)), replica_id(int(to))) for sender, to in paths}

    def _heal(self) -> None:
        self._world.blocked.clear()

    # --- disks and crashes ---

    def _stall(self, number: str) -> None:
        self._world.stalled.add(replica_id(int(number)))

    def _write(self, number: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self._member(number).finish_write()

    def _flow(self, number: str) -> None:
        self._world.stalled.discard(replica_id(int(number)))

    def _crash(self, number: str, written: str = "0") -> None:
        self._member(number).crash(int(written))

    def _restart(self, number: str) -> None:
        self._member(number).start()

    # --- requests of owners ---

    def _propose(self, number: str, *words: str) -> None:
        node = self._node(number)
        self._attempt(number, lambda: node.propose(" ".join(words).encode()))

    def _change(self, number: str, *words: str) -> None:
        sets = {
            name: tuple(replica_id(int(each)) for each in value.split(",") if each)
            for name, _, value in (word.partition("=") for word in words)
        }
        wanted = Membership(sets["voters"], sets.get("learners", ()))
        node = self._node(number)
        self._attempt(number, lambda: node.propose(b"change", wanted))

    def _read(self, number: str) -> None:
        member = self._member(number)
        self._reads += 1
        member.reads[self._reads] = self._world.oracle.commit_index
        member.call(lambda node: node.read_index(self._reads))

    def _transfer(self, number: str, to: str) -> None:
        node = self._node(number)
        self._attempt(number, lambda: node.transfer(replica_id(int(to))))

    def _suspect(self, number: str, leader: str) -> None:
        self._member(number).call(lambda node: node.suspect_leader(replica_id(int(leader))))

    def _unreachable(self, number: str, peer: str) -> None:
        self._member(number).call(lambda node: node.unreachable(replica_id(int(peer))))

    def _stepdown(self, number: str) -> None:
        self._member(number).call(lambda node: node.step_down("asked"))

    def _snapshot(self, number: str, trailing: str = "0") -> None:
        self._member(number).take_snapshot(int(trailing))

    # --- inspection ---

    def _node(self, number: str) -> RaftNode:
        node = self._member(number).node
        assert node is not None, f"{number} is down"
        return node

    def _show(self, whom: str) -> None:
        for member in self._world.members.values():
            if whom in {"all", str(member.own.node_id)}:
                self._say(self._describe(member))

    def _describe(self, member: Member) -> str:
        node = member.node
        if node is None:
            return f"{member.own.node_id} is down"
        entries = (
            node.entries(node.first_index, node.last_index) if node.last_index >= node.first_index else ()
        )
        log = " ".join(f"{entry.index}@{entry.term}" for entry in entries) or "nothing"
        learners = f", learners {numbers(node.membership.learners)}" if node.membership.learners else ""
        transfer = f", handing over to {node.transfer_target.node_id}" if node.transfer_target else ""
        return (
            f"{member.own.node_id} is {node.role.value} in term {node.term}, has {log}, durable"
            f" {node.durable_index}, commit {node.commit_index}; "
            f"voters {numbers(node.membership.voters)}{learners}{transfer}"
        )

    def _progress(self, number: str) -> None:
        for peer, progress in self._node(number).progress().items():
            self._say(
                f"{peer.node_id}: {progress.state.value}, match {progress.match_index}, next"
                f" {progress.next_index}, in flight {len(progress._in_flight)}"
            )


def _suspect_its_leader(node: RaftNode) -> None:
    assert node.leader is not None
    node.suspect_leader(node.leader)


def numbers(replicas: tuple[ReplicaId, ...]) -> str:
    return " ".join(str(replica.node_id) for replica in replicas) or "none"


def in_words(message: Message) -> str:
    """Format a message as one line."""
    return f"{message.sender.node_id}>{message.to.node_id} term {message.term}: {_content(message)}"


def _content(message: Message) -> str:
    match message:
        case VoteRequest(last_index=index, last_term=term, pre_vote=pre_vote, transfer=transfer):
            return (
                f"{'pre-vote' if pre_vote else 'vote'}? my last is"
                f" {index}@{term}{', handed over' if transfer else ''}"
            )
        case VoteResponse(pre_vote=pre_vote, granted=granted):
            return f"{'pre-vote' if pre_vote else 'vote'} {'granted' if granted else 'refused'}"
        case AppendRequest(prev_index=index, prev_term=term, entries=entries, commit=commit):
            return f"append {_list(entries)} after {index}@{term}, commit {commit}"
        case AppendResponse(
            match_index=match_index,
            rejected=rejected,
            rejected_index=index,
            hint_index=hint,
            hint_term=hint_term,
        ):
            return (
                f"not after {index}, try {hint}@{hint_term}" if rejected else f"durable up to {match_index}"
            )
        case HeartbeatRequest(commit=commit, round=number):
            return f"heartbeat {number}, commit {commit}"
        case HeartbeatResponse(round=number):
            return f"echo {number}"
        case SnapshotChunk(meta=meta, offset=offset, data=data):
            return (
                f"snapshot at {meta.index}@{meta.term}, bytes {offset}..{offset + len(data)} of"
                f" {meta.size_bytes}"
            )
        case SnapshotAck(index=index, next_offset=offset, installed=installed):
            return f"snapshot at {index} {'installed' if installed else f'kept up to {offset}'}"
        case ReadIndexRequest():
            return "read index?"
        case ReadIndexResponse(index=index):
            return f"read index {index}"
        case _:
            return "campaign now"


def _list(entries: tuple[Entry, ...]) -> str:
    return " ".join(f"{entry.index}@{entry.term}" for entry in entries) or "nothing"


def script_of(path: Path) -> str:
    """Build the text of a script; commands are words separated by blanks."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"[ \t]+$", text, re.MULTILINE), f"{path.name} has blanks at the end of a line"
    return text
