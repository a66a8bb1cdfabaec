"""Planted bugs of Raft, and their replacements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_raft import leading
from ponor_raft.election import Election
from ponor_raft.entry import Entry
from ponor_raft.errors import MembershipChangeError
from ponor_raft.following import Following
from ponor_raft.log_window import LogWindow
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.membership_change import check_change
from ponor_raft.messages import AppendResponse, Message, VoteRequest, VoteResponse
from ponor_raft.outbox import Outbox
from ponor_raft.reads import ReadRounds, _Read
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication

from tests.simulation.mutants.mutant import Catch, Mutant, Suite, method, used_in

_send_when_durable = Outbox.send_when_durable
_persisted = Outbox.persisted
_end_write = LogWindow.end_write
_advance_commit = Replication.advance_commit
_answer = Election.answer
_add_read = ReadRounds.add
_begin_replica = Replica.__init__


def send_at_once(*kinds: type[Message]) -> Callable[[Outbox, Message], None]:
    """`Outbox.send_when_durable` that does not wait with messages of these kinds."""

    def send(self: Outbox, message: Message) -> None:
        if isinstance(message, kinds):
            self.send(message)
        else:
            _send_when_durable(self, message)

    return send


send_votes_at_once = send_at_once(VoteRequest, VoteResponse)
send_acknowledgements_at_once = send_at_once(AppendResponse)


def ignore_refusal(text: str) -> Callable[[Replica, Replication, Membership], None]:
    """`check_change` that ignores the refusal whose message contains `text`."""

    def check(replica: Replica, replication: Replication, wanted: Membership) -> None:
        try:
            check_change(replica, replication, wanted)
        except MembershipChangeError as refused:
            if text not in str(refused):
                raise

    return check


def vote_twice(self: Election, request: VoteRequest) -> None:
    """`Election.answer`."""
    if not request.pre_vote:
        self._replica.voted_for = None
    _answer(self, request)


def vote_for_shorter_log(self: Election, request: VoteRequest) -> None:
    """`Election.answer`."""
    log = self._replica.log
    last_index = max(request.last_index, log.last_index)
    last_term = max(request.last_term, log.last_term)
    _answer(self, replace(request, last_index=last_index, last_term=last_term))


def commit_old_terms(self: Replication) -> bool:
    """`Replication.advance_commit`."""
    log, index = self._replica.log, self._reached_by_majority()
    if index <= log.commit:
        return False
    log.commit_to(index)
    return True


def count_entries_in_flight(self: Replication) -> bool:
    """`Replication.advance_commit`."""
    log: LogWindow = self._replica.log
    durable, log.durable = log.durable, log.handed_out
    try:
        return _advance_commit(self)
    finally:
        log.durable = durable


def answer_read_at_once(self: ReadRounds, origin: ReplicaId | None, context: int) -> None:
    """`ReadRounds.add`."""
    if self._replication.has_committed_own_term:
        self._answer(_Read(origin, context), self._replica.log.commit)
    else:
        _add_read(self, origin, context)


def admit_nothing_when_full(self: Following, new: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """`Following._admitted`."""
    replica = self._replica
    if len(replica.log) + len(new) > replica.limits.window_entries_max:
        replica.drop("window full")
        return ()
    return new


def forget_floor_at_start(self: Replica, *arguments: Any) -> None:
    """`Replica.__init__`."""
    _begin_replica(self, *arguments)
    self.floor = (0, 0)


# A disk that reports a later write before an earlier one, and a core that takes it for both.


def persisted_with_earlier(self: Outbox, sequence: int) -> None:
    """`Outbox.persisted`."""
    while self._writing and self._writing[0].sequence <= sequence:
        _persisted(self, self._writing[0].sequence)


def end_with_earlier(self: LogWindow, sequence: int) -> None:
    """`LogWindow.end_write`."""
    while self._writes and self._writes[0].sequence <= sequence:
        _end_write(self, self._writes[0].sequence)


def end_newest(self: RaftDisk) -> None:
    """`RaftDisk.end_oldest`: keeps the oldest write, and reports the newest one as ended too."""
    newest, oldest = self._writes[-1], self._writes.popleft()
    if newest is not oldest:
        report, newest.ended = newest.ended, lambda: None
        report()
    self._keep(oldest.content)
    oldest.ended()


RAFT_MUTANTS: Final = (
    Mutant(
        "raft_votes_before_durable",
        "A vote is sent before it is on the disk; after a crash the replica votes again in the same term.",
        (method(Outbox.send_when_durable, send_votes_at_once),),
        (Catch(Suite.RAFT, "invariant 7: .* votes for", 1),),
    ),
    Mutant(
        "raft_votes_twice",
        "A replica votes for every candidate of a term.",
        (method(Election.answer, vote_twice),),
        (Catch(Suite.RAFT, "invariant 8|invariant 1:|assert in", 1),),
    ),
    Mutant(
        "raft_votes_for_shorter_logs",
        "A replica grants a vote without comparing the candidate's log.",
        (method(Election.answer, vote_for_shorter_log),),
        (Catch(Suite.RAFT, "invariant 5", 5),),
    ),
    Mutant(
        "raft_acknowledges_before_durable",
        "A follower acknowledges entries to the leader while they are being written.",
        (method(Outbox.send_when_durable, send_acknowledgements_at_once),),
        (Catch(Suite.RAFT, "invariant 7: .* acknowledges", 1),),
    ),
    Mutant(
        "raft_leader_counts_itself_early",
        "A leader counts its own entries before they are on its disk (etcd-io/etcd #14370 for one voter).",
        (method(Replication.advance_commit, count_entries_in_flight),),
        (Catch(Suite.RAFT, "invariant 7: .* which is durable at", 1),),
    ),
    Mutant(
        "raft_storage_out_of_order",
        "The disk reports writes in any order, and the core takes a later one for all earlier ones.",
        (
            method(Outbox.persisted, persisted_with_earlier),
            method(LogWindow.end_write, end_with_earlier),
            method(RaftDisk.end_oldest, end_newest),
        ),
        (Catch(Suite.RAFT, "invariant 7", 1),),
    ),
    Mutant(
        "raft_commits_old_terms",
        "A leader commits entries of earlier terms by counting replicas (Figure 8 of the Raft paper).",
        (method(Replication.advance_commit, commit_old_terms),),
        (Catch(Suite.RAFT, "invariant 5: .* an entry of term", 5),),
    ),
    Mutant(
        "raft_changes_overlap",
        "A membership change begins before the previous one is committed.",
        used_in("check_change", ignore_refusal("is not committed yet"), leading),
        (Catch(Suite.RAFT, "invariant 9", 18),),
    ),
    Mutant(
        "raft_changes_before_own_term",
        "A leader changes the membership before it has committed an entry of its term (Ongaro, raft-dev,"
        " 2015).",
        used_in("check_change", ignore_refusal("of its own term"), leading),
        (Catch(Suite.RAFT, "invariant 9", 18),),
    ),
    Mutant(
        "raft_reads_without_heartbeats",
        "A leader answers reads from its commit index without confirming that it still leads.",
        (method(ReadRounds.add, answer_read_at_once),),
        (Catch(Suite.RAFT, "invariant 11|not linearizable", 6), Catch(Suite.SWARM, r"invariant 11", 1)),
    ),
    Mutant(
        "raft_full_window_refuses_openings",
        "A follower with a full window refuses all entries, also those that commits and compaction need.",
        (method(Following._admitted, admit_nothing_when_full),),
        (Catch(Suite.RAFT, "no recovery", 46),),
    ),
    Mutant(
        "raft_forgets_what_it_lacks",
        "A voter does not record which committed entries its log lacks.",
        (method(Replica.raise_floor, lambda self, term, index: None),),
        (Catch(Suite.RAFT, "invariant 47|invariant 5", 6),),
    ),
    Mutant(
        "raft_floor_lost_by_restart",
        "A voter forgets at its next start which committed entries its log lacks.",
        (method(Replica.__init__, forget_floor_at_start),),
        (Catch(Suite.RAFT, "invariant 47|invariant 5|invariant 8", 8),),
    ),
)
