"""The follower's half of replication: append entries, find where the logs diverge, follow the leader's commit
index.

The caller has already handled the term, the election timer and the identity of the leader. Messages of peers
never raise exceptions: invalid messages are dropped and counted.
"""

from __future__ import annotations

from itertools import count
from operator import attrgetter, eq, le

from ponor_raft.entry import Entry
from ponor_raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    SnapshotChunk,
)
from ponor_raft.ready import LostEntries
from ponor_raft.replica import Replica

_index = attrgetter("index")
_term = attrgetter("term")


class Following:
    """The follower's half of replication."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._told_lost = 0

    def on_append(self, request: AppendRequest) -> None:
        """Append new entries; acknowledge them once they are durable."""
        replica = self._replica
        if not _is_well_formed(request):
            replica.drop("malformed append")
            return
        if request.acknowledged > max(replica.log.last_index, self._told_lost):
            # This also holds for late messages: entries acknowledged in a term stay in the log during that
            # term.
            self._told_lost = request.acknowledged
            replica.outbox.lost = LostEntries(replica.log.last_index, request.acknowledged)
        self._follow(request)
        replica.raise_floor(request.commit_term, request.commit)

    def _follow(self, request: AppendRequest) -> None:
        replica = self._replica
        log = replica.log
        entries = request.entries
        last = request.prev_index + len(entries)
        if request.prev_index < log.commit:
            # Committed entries are in every later leader's log. Do not compare at prev_index, which may no
            # longer be in memory.
            entries = entries[log.commit - request.prev_index :]
        elif log.term_at(request.prev_index) != request.prev_term:
            self._reject(request)
            return
        if entries:
            taken_to = self._take_over(entries)
            if taken_to is None:
                return
            last = min(last, taken_to)
        # Advance the commit index even if the window is full: only committed entries can be applied, included
        # in a snapshot and compacted.
        log.commit_to(min(request.commit, max(last, log.commit)))
        self._acknowledge(request, max(last, log.commit))

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        """Echo a heartbeat without waiting for the disk, because a replica with a stalled disk is alive
        (etcd-io/etcd #7970).
        """
        replica = self._replica
        if request.commit > replica.log.last_index:
            replica.drop("commit beyond the log")
        else:
            replica.log.commit_to(request.commit)
        replica.outbox.send(HeartbeatResponse(replica.own, request.sender, replica.term, request.round))

    def send_term(self, request: AppendRequest | HeartbeatRequest | SnapshotChunk) -> None:
        """Answer the leader of an older term, so that it sees the newer term.

        This replica may have raised its term in an election that it lost, with a log too short to ever win.
        It accepts no message of the older term, so without this response it would be stuck forever
        (etcd-io/etcd #8501).
        """
        replica = self._replica
        replica.outbox.send(AppendResponse(replica.own, request.sender, replica.term, 0, rejected=True))

    def _take_over(self, entries: tuple[Entry, ...]) -> int | None:
        """Append new entries in place of conflicting ones. Return the last index that matches the leader's
        log; None if the message was dropped.
        """
        replica = self._replica
        log = replica.log
        new = _without_known(entries, replica)
        if not new:
            return entries[-1].index
        first = new[0].index
        if first <= log.commit:
            replica.drop("conflict with a committed entry")
            return None
        if (log.term_at(first - 1) or 0) > new[0].term:
            replica.drop("malformed append")
            return None
        new = self._admitted(new)
        if not new:
            return first - 1
        if first <= log.last_index:
            log.cut(first)
            replica.configurations.cut(first)
        log.append(new)
        replica.configurations.append(new)
        return new[-1].index

    def _admitted(self, new: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return as many new entries as there is room for.

        Only committed entries count against the limit, because they can be compacted. Uncommitted entries
        must always be accepted, because otherwise the commit index could not advance; the leader limits their
        number. For the same reason the opening entry of a term is accepted even at the limit.
        """
        replica = self._replica
        log, limits = replica.log, replica.limits
        committed = log.commit - log.before_index
        if committed < limits.window_entries_max and log.bytes_up_to(log.commit) < limits.window_bytes_max:
            return new
        replica.drop("window full")
        opens_term = new[0].term > (log.term_at(new[0].index - 1) or 0)
        return new[:1] if opens_term else ()

    def _acknowledge(self, request: AppendRequest, match_index: int) -> None:
        replica = self._replica
        replica.outbox.send_when_durable(
            AppendResponse(replica.own, request.sender, replica.term, match_index)
        )

    def _reject(self, request: AppendRequest) -> None:
        """Reject. The hint is the last entry that the leader's log may also contain, so that the search takes
        one round trip per differing term instead of one per entry.
        """
        replica = self._replica
        log = replica.log
        hint_index, hint_term = log.last_at_or_below(
            min(request.prev_index, log.last_index), request.prev_term
        )
        if hint_index < log.commit:
            hint_index, hint_term = log.commit, log.term_at(log.commit) or 0
        replica.outbox.send(
            AppendResponse(
                replica.own, request.sender, replica.term, 0,
                rejected=True, rejected_index=request.prev_index, hint_index=hint_index, hint_term=hint_term,
            )
        )  # fmt: skip


def _is_well_formed(request: AppendRequest) -> bool:
    """Whether the entries follow `prev_index` without a gap, and their terms never decrease and lie between
    `prev_term` and the sender's term.
    """
    if request.commit_term > request.term:
        return False
    if not request.entries:
        return True
    terms = [request.prev_term, *map(_term, request.entries), request.term]
    return all(map(eq, map(_index, request.entries), count(request.prev_index + 1))) and all(
        map(le, terms, terms[1:])
    )


def _without_known(entries: tuple[Entry, ...], replica: Replica) -> tuple[Entry, ...]:
    """Return the entries without the prefix that is already in the log."""
    log = replica.log
    if entries[0].index > log.last_index:
        return entries
    last = entries[-1]
    if log.term_at(last.index) == last.term:
        return ()  # same index and term: same entry and same prefix (log matching)
    known = 0
    while known < len(entries) and log.term_at(entries[known].index) == entries[known].term:
        known += 1
    return entries[known:]
