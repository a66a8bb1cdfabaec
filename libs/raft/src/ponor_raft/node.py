"""One replica of a Raft group: inputs are messages, ticks and proposals, outputs are instructions.

This module contains the public class and the handling of terms. `election`, `following`, `leading` (with
`replication`, `reads`, `transfer`, `membership_change`), `snapshot_transfer`, `log_window` and `outbox`
implement the parts.

Duties of the owner, in this order:

1. After any call, call `ready` until it returns None, and execute its instructions (`ponor_raft.ready`).
2. Call `tick` at a steady rate. After a pause of the process one tick is enough.
3. Make each `Persist` durable in the given order and call `persisted`; only then send its messages.
4. When `Ready.leadership` reports LEADER, propose the opening entry; it also commits entries of older terms.
5. Apply `Ready.committed`; take snapshots of applied state; call `snapshot_available`, then `compact`.
6. Store chunks and answer each with `keep_chunk`. Load a complete, verified body, then call `restore`.

The core uses no clock, randomness (`draw` is an argument), disk or network: it is deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from ponor_raft.configurations import Configurations
from ponor_raft.election import Election, Outcome
from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.errors import NotLeaderError
from ponor_raft.follower_progress import FollowerProgress
from ponor_raft.following import Following
from ponor_raft.leading import Leading
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
from ponor_raft.reads import ForwardedReads
from ponor_raft.ready import Leadership, Ready, Role
from ponor_raft.replica import Replica
from ponor_raft.snapshot_transfer import SnapshotReceiving
from ponor_raft.stored import StoredState

_FROM_LEADER = (AppendRequest, HeartbeatRequest, SnapshotChunk)
_FROM_MEMBER = (VoteResponse, AppendResponse, HeartbeatResponse, SnapshotAck, ReadIndexRequest)


class RaftNode:
    """A replica; the module docstring lists the duties of its owner."""

    def __init__(
        self, own: ReplicaId, limits: RaftLimits, stored: StoredState, draw: Callable[[int], int]
    ) -> None:
        """Start as a follower in the state `stored`. `draw(n)` returns a random int in [0, n)."""
        log = stored.open_log()
        configurations = Configurations(stored.base.index, stored.base.membership)
        configurations.append(
            [entry for entry in log.all_after(stored.base.index) if entry.membership is not None]
        )
        self._replica = Replica(own, limits, draw, stored.hard_state, log, configurations)
        self._election = Election(self._replica)
        self._following = Following(self._replica)
        self._receiving = SnapshotReceiving(self._replica)
        self._forwarded = ForwardedReads(self._replica)
        self._leading: Leading | None = None
        self._snapshot = stored.base
        self._reported = Leadership(Role.FOLLOWER, self._replica.term, None)
        self._handlers: dict[type, Callable[..., None]] = {
            VoteRequest: self._election.answer,
            VoteResponse: self._on_vote_response,
            AppendRequest: self._following.on_append,
            AppendResponse: self._on_append_response,
            HeartbeatRequest: self._following.on_heartbeat,
            HeartbeatResponse: self._on_heartbeat_response,
            TimeoutNow: self._on_timeout_now,
            SnapshotChunk: self._receiving.on_chunk,
            SnapshotAck: self._on_snapshot_ack,
            ReadIndexRequest: self._on_read_request,
            ReadIndexResponse: self._on_read_response,
        }

    # --- what it is ---

    @property
    def own(self) -> ReplicaId:
        return self._replica.own

    @property
    def role(self) -> Role:
        return self._replica.role

    @property
    def term(self) -> int:
        return self._replica.term

    @property
    def voted_for(self) -> ReplicaId | None:
        return self._replica.voted_for

    @property
    def leader(self) -> ReplicaId | None:
        """Leader of this term, if known."""
        return self._replica.leader

    @property
    def is_leader(self) -> bool:
        return self._replica.role is Role.LEADER

    @property
    def commit_index(self) -> int:
        """The known commit index. Entries up to this index may not be durable locally yet."""
        return self._replica.log.commit

    @property
    def durable_index(self) -> int:
        """Index up to which the log is durable locally."""
        return self._replica.log.durable

    @property
    def last_index(self) -> int:
        return self._replica.log.last_index

    @property
    def last_term(self) -> int:
        return self._replica.log.last_term

    @property
    def first_index(self) -> int:
        """Index of the first entry in memory."""
        return self._replica.log.first_index

    @property
    def membership(self) -> Membership:
        """Membership in force, committed or not."""
        return self._replica.membership

    @property
    def membership_index(self) -> int:
        """Index of the membership in force."""
        return self._replica.configurations.current_index

    @property
    def transfer_target(self) -> ReplicaId | None:
        return self._leading.transfer.target if self._leading is not None else None

    @property
    def has_room(self) -> bool:
        """Whether the owner should propose more. False before the limits, so that pending ones fit."""
        log, limits = self._replica.log, self._replica.limits
        reserved_entries = min(limits.uncommitted_entries_max, limits.window_entries_max // 2)
        reserved_bytes = min(limits.uncommitted_bytes_max, limits.window_bytes_max // 2)
        return (
            len(log) < limits.window_entries_max - reserved_entries
            and log.size_bytes < limits.window_bytes_max - reserved_bytes
        )

    def room_problem(self, size_bytes: int) -> str | None:
        """Error that `propose` would raise for an entry of this size, or None."""
        return self._leading.room_problem(size_bytes) if self._leading is not None else None

    @property
    def dropped(self) -> Counter[str]:
        """Counts of ignored messages by reason."""
        return self._replica.dropped

    def membership_at(self, index: int) -> Membership:
        """Membership in force at `index`; raises `LookupError` before the newest snapshot."""
        return self._replica.configurations.at(index)

    def term_at(self, index: int) -> int | None:
        """Term of the entry at an index; None if the entry is not in memory."""
        return self._replica.log.term_at(index)

    def entries(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries in memory from `first` to `last`, inclusive."""
        log = self._replica.log
        assert log.first_index <= first <= last <= log.last_index
        return log.between(first, last)

    def progress(self) -> Mapping[ReplicaId, FollowerProgress]:
        """Progress of every other member, read-only; empty unless this replica leads."""
        return self._leading.replication.progress if self._leading is not None else {}

    # --- inputs ---

    @property
    def required(self) -> tuple[int, int]:
        """(term, index) that a candidate's log must reach: this log's end, or a later committed entry."""
        return self._replica.required

    @property
    def newest_round(self) -> int:
        """Newest heartbeat round of this leader; 0 if this replica does not lead."""
        return self._leading.reads.newest_round if self._leading is not None else 0

    @property
    def confirmed_round(self) -> int:
        """Newest round that a majority echoed: at its start no later term had a leader. 0 if not leader."""
        return self._leading.reads.confirmed_round if self._leading is not None else 0

    @property
    def hears_leader(self) -> bool:
        """Whether another replica leads and was heard since the last tick."""
        return self._leading is None and self._election.hears_leader

    def tick(self) -> None:
        """Advance time by one tick."""
        self._receiving.tick()
        self._forwarded.tick()
        if self._leading is not None:
            if not self._leading.tick():
                self._follow(self._replica.term, None)
        elif self._election.tick():
            self._campaign()

    def step(self, message: Message) -> None:
        """Handle a message. This never raises: invalid or stale messages are dropped and counted."""
        replica = self._replica
        if message.to != replica.own or message.sender == replica.own:
            replica.drop("not for this replica")
        elif isinstance(message, _FROM_MEMBER) and message.sender not in replica.membership.members:
            replica.drop("not from a member")
        elif self._is_of_this_term(message):
            self._handlers[type(message)](message)

    def propose(self, data: bytes, membership: Membership | None = None) -> Entry:
        """Append an entry. `Ready.committed` returns it later, unless another leader's entry replaces it.

        Raises:
            NotLeaderError: this replica does not lead, or is transferring leadership.
            ProposalsFullError: `uncommitted_*_max` or `window_*_max` is reached.
            MembershipChangeError: `membership` is not allowed now.
        """
        return self._lead("propose").propose(data, membership)

    def read_index(self, context: int) -> None:
        """Request the index for a linearizable read; `Ready.reads` returns it (index None if refused)."""
        if self._leading is not None:
            self._leading.reads.add(None, context)
        else:
            self._forwarded.add(context)

    def transfer(self, to: ReplicaId) -> None:
        """Transfer leadership to another voter. Refuse proposals until then, at most for `transfer_ticks`.

        Raises:
            NotLeaderError: this replica does not lead.
            TransferError: `to` is not another voter.
        """
        self._lead("transfer").transfer.begin(to)

    def suspect_leader(self, leader: ReplicaId) -> None:
        """Report a broken stream to `leader`: end the lease now, campaign after `suspicion_ticks`."""
        if self._replica.leader == leader and self._leading is None:
            self._election.suspect()

    def unreachable(self, peer: ReplicaId) -> None:
        """Report a failed send to `peer`."""
        if self._leading is not None:
            self._leading.unreachable(peer)

    def peer_restarted(self, peer: ReplicaId) -> None:
        """Report a new stream from `peer`. After this call, no message of an older stream may arrive.

        The peer may have lost acknowledged entries: it truncated a damaged tail that looked torn, or an older
        copy of its directory was restored. Otherwise the leader would ignore the peer's rejections as stale.
        """
        if self._leading is not None:
            self._leading.replication.reset_peer(peer)

    def step_down(self, reason: str) -> None:
        """Stop leading or campaigning; `reason` is counted in `dropped` as "stepped down: reason"."""
        if self._replica.role is not Role.FOLLOWER:
            self._replica.drop(f"stepped down: {reason}")
            self._follow(self._replica.term, None)

    def persisted(self, sequence: int) -> None:
        """Report that the `Persist` of this sequence is durable. Call it in the order of the sequences."""
        replica = self._replica
        replica.outbox.persisted(sequence)
        replica.log.end_write(sequence)
        if self._leading is not None:
            self._after_answer(self._leading.replication.advance_commit())
        else:
            self._decide(self._election.on_durable())

    def keep_chunk(self, chunk: SnapshotChunk, next_offset: int) -> None:
        """Report that the owner has stored the body up to `next_offset`, with this chunk and earlier ones."""
        self._receiving.keep(chunk, next_offset)

    def restore(self, meta: SnapshotMeta) -> None:
        """Report that a received snapshot is durable, verified and loaded. An old snapshot has no effect."""
        replica = self._replica
        if meta.index > replica.log.commit and replica.role is not Role.FOLLOWER:
            self._follow(replica.term, None)
        if meta.index > replica.log.delivered:
            self._snapshot = meta
        self._receiving.restore(meta)

    def snapshot_available(self, meta: SnapshotMeta) -> None:
        """Report a durable snapshot of applied state."""
        assert meta.index <= self._replica.log.delivered, "the snapshot contains undelivered entries"
        if meta.index > self._snapshot.index:
            self._snapshot = meta

    def compact(self, index: int) -> None:
        """Remove entries up to `index` from memory. A durable snapshot must contain them. Idempotent."""
        assert index <= self._snapshot.index, (
            f"no snapshot contains index {index}; the newest snapshot is at {self._snapshot.index}"
        )
        if index > self._replica.log.before_index:
            self._replica.log.compact(index)
        self._replica.configurations.compact(index)

    # --- instructions ---

    def ready(self) -> Ready | None:
        """Return all instructions since the last call, or None."""
        replica = self._replica
        outbox = replica.outbox
        if self._leading is not None:
            self._leading.flush()
        persist = outbox.persist(replica.hard_state, replica.log)
        leadership, committed = self._news(), replica.log.deliver()
        if leadership is None and persist is None and not committed and outbox.is_empty:
            return None
        return Ready(
            leadership=leadership,
            messages=outbox.take_messages(),
            persist=persist,
            committed=committed,
            reads=outbox.take_reads(),
            chunks=outbox.take_chunks(),
            snapshots=outbox.take_snapshots(),
            lost=outbox.take_lost(),
        )

    def _news(self) -> Leadership | None:
        replica = self._replica
        last = self._reported
        if last.role is replica.role and last.term == replica.term and last.leader == replica.leader:
            return None
        self._reported = Leadership(replica.role, replica.term, replica.leader)
        return self._reported

    # --- terms and roles ---

    def _is_of_this_term(self, message: Message) -> bool:
        """Compare terms: enter a newer term; drop messages of an older term, and answer its leader."""
        replica = self._replica
        if isinstance(message, VoteRequest):
            return self._may_answer(message)
        if message.term > replica.term:
            if isinstance(message, VoteResponse) and message.pre_vote and message.granted:
                return True  # contains the requested term, which no replica has entered yet
            if isinstance(message, (TimeoutNow, ReadIndexResponse)):
                replica.drop("meant for a follower of a newer term")
                return False
            self._follow(message.term, None)
        elif message.term < replica.term:
            if isinstance(message, _FROM_LEADER):
                self._following.send_term(message)
            replica.drop("of an older term")
            return False
        if isinstance(message, _FROM_LEADER):
            return self._accept_leader(message.sender)
        return True

    def _may_answer(self, request: VoteRequest) -> bool:
        replica = self._replica
        if request.term < replica.term:
            self._election.refuse(request)
            replica.drop("of an older term")
            return False
        if request.term > replica.term:
            if self._election.in_lease() and not request.transfer:
                replica.drop("campaign against a leader that is heard")
                return False
            if not request.pre_vote:
                self._follow(request.term, None)
        return True

    def _accept_leader(self, sender: ReplicaId) -> bool:
        replica = self._replica
        if replica.role is Role.LEADER or (replica.leader is not None and replica.leader != sender):
            replica.drop("second leader in one term")
            return False
        if replica.leader is None:
            self._follow(replica.term, sender)
        # Record a vote for the leader: this voter's disk may have lost its vote, and it must not vote again.
        replica.voted_for = replica.voted_for or sender
        self._election.heard_leader()
        return True

    def _follow(self, term: int, leader: ReplicaId | None) -> None:
        """Become a follower; end leadership or candidacy, and refuse waiting reads."""
        replica = self._replica
        if term > replica.term:
            replica.enter_term(term)
        if self._leading is not None:
            leading, self._leading = self._leading, None
            leading.reads.refuse_all()
        if replica.role is not Role.FOLLOWER:
            replica.role = Role.FOLLOWER
            self._election.restart_timer()
        replica.leader = leader
        self._forwarded.refuse_all()

    def _campaign(self) -> None:
        self._forwarded.refuse_all()
        self._decide(self._election.start_pre_vote())

    def _decide(self, outcome: Outcome) -> None:
        replica = self._replica
        if outcome is Outcome.LOST:
            replica.role = Role.FOLLOWER
        elif outcome is Outcome.WON and replica.role is Role.PRE_CANDIDATE:
            self._election.start_vote(transfer=False)
        elif outcome is Outcome.WON:
            replica.role = Role.LEADER
            replica.leader = replica.own
            self._leading = Leading(replica)
            self._leading.begin()

    def _lead(self, what: str) -> Leading:
        if self._leading is None:
            leader = self._replica.leader
            remedy = f"node {leader.node_id} leads" if leader is not None else "no known leader; try again"
            raise NotLeaderError(f"cannot {what}: this replica does not lead; {remedy}")
        return self._leading

    # --- handlers ---

    def _on_vote_response(self, response: VoteResponse) -> None:
        self._decide(self._election.on_response(response))

    def _on_append_response(self, response: AppendResponse) -> None:
        if self._leading is not None:
            self._after_answer(self._leading.on_append_response(response))

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        if self._leading is not None:
            self._leading.on_heartbeat_response(response)

    def _on_snapshot_ack(self, ack: SnapshotAck) -> None:
        if self._leading is not None:
            self._after_answer(self._leading.on_snapshot_ack(ack))

    def _on_read_request(self, request: ReadIndexRequest) -> None:
        replica = self._replica
        if self._leading is not None:
            self._leading.on_read_request(request)
        else:
            replica.outbox.send(
                ReadIndexResponse(replica.own, request.sender, replica.term, request.context, 0)
            )

    def _on_read_response(self, response: ReadIndexResponse) -> None:
        if response.sender == self._replica.leader:
            self._forwarded.on_response(response)
        else:
            self._replica.drop("read index not from the leader")

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        replica = self._replica
        if message.sender != replica.leader or not replica.may_campaign:
            replica.drop("handover from a node that does not lead, or to a node that does not vote")
            return
        self._forwarded.refuse_all()
        self._election.start_vote(transfer=True)

    def _after_answer(self, moved: bool) -> None:
        """Step down if the commit index moved and this leader's own removal is now committed."""
        leading = self._leading
        if moved and leading is not None and leading.is_dismissed():
            leading.announce_removal()
            self._follow(self._replica.term, None)

    def validate(self) -> None:
        """Assert all invariants; for tests, after each call."""
        replica = self._replica
        replica.log.validate()
        replica.configurations.validate()
        self._election.validate()
        self._forwarded.validate()
        assert (self._leading is not None) == (replica.role is Role.LEADER)
        assert (replica.leader == replica.own) == (replica.role is Role.LEADER)
        assert replica.log.last_term <= replica.term
        assert self._snapshot.index <= replica.log.delivered
        if self._leading is not None:
            self._leading.validate()
