"""What a follower does with what its leader sends.

What lives here: taking entries over, finding where two logs part, and following the leader's commit index. Terms, the election timer and who leads were
dealt with before. Nothing a peer sends raises: what cannot be true is dropped and counted.
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
        """Take over what is new, and acknowledge it once it is durable."""
        replica = self._replica
        if not _is_well_formed(request):
            replica.drop("malformed append")
            return
        if request.acknowledged > max(replica.log.last_index, self._told_lost):
            # True however late the message comes: nothing that was acknowledged in a term leaves the log in that term.
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
            # What is committed agrees with every later leader; the window may begin behind prev_index, so do not look there.
            entries = entries[log.commit - request.prev_index :]
        elif log.term_at(request.prev_index) != request.prev_term:
            self._reject(request)
            return
        if entries:
            taken_to = self._take_over(entries)
            if taken_to is None:
                return
            last = min(last, taken_to)
        # Also without room: only what is known to be committed can be applied, held by a snapshot and compacted.
        log.commit_to(min(request.commit, max(last, log.commit)))
        self._acknowledge(request, max(last, log.commit))

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        """Never waits for the disk: a stalled disk must not look like a dead replica (etcd-io/etcd #7970)."""
        replica = self._replica
        if request.commit > replica.log.last_index:
            replica.drop("commit beyond the log")
        else:
            replica.log.commit_to(request.commit)
        replica.outbox.send(HeartbeatResponse(replica.own, request.sender, replica.term, request.round))

    def tell_term(self, request: AppendRequest | HeartbeatRequest | SnapshotChunk) -> None:
        """Answer a leader of the past, so that it learns of the newer term.

        A replica that reached a higher term by a vote it lost cannot win with a shorter log and takes nothing from the old leader: without this
        answer it would be stuck for ever (etcd-io/etcd #8501).
        """
        replica = self._replica
        replica.outbox.send(AppendResponse(replica.own, request.sender, replica.term, 0, rejected=True))

    def _take_over(self, entries: tuple[Entry, ...]) -> int | None:
        """Append what is not here yet, after cutting what contradicts it; the last index that now agrees with the leader, None for a message to ignore."""
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
        """As many of the new entries as there is room for.

        Only committed entries count: they can be compacted. The others must be taken whatever the window holds, because nothing is committed without them; the leader bounds
        how many there are. For the same reason the entry that opens a term is taken beyond the bound.
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
        """Hint at the last entry here that the leader may have as well: one round per term that differs, not one per entry."""
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
    """The entries follow `prev_index` without a hole, and no term is above the sender's; those of the entries rise from `prev_term`."""
    if request.commit_term > request.term:
        return False
    if not request.entries:
        return True
    terms = [request.prev_term, *map(_term, request.entries), request.term]
    return all(map(eq, map(_index, request.entries), count(request.prev_index + 1))) and all(
        map(le, terms, terms[1:])
    )


def _without_known(entries: tuple[Entry, ...], replica: Replica) -> tuple[Entry, ...]:
    """What is left when the entries that are here already are taken off the front."""
    log = replica.log
    if entries[0].index > log.last_index:
        return entries
    last = entries[-1]
    if log.term_at(last.index) == last.term:
        return ()  # same index and term: same entry, and the same before it (log matching)
    known = 0
    while known < len(entries) and log.term_at(entries[known].index) == entries[known].term:
        known += 1
    return entries[known:]
