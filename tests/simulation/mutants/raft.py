"""Replacements for the mutants of the Raft core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
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
