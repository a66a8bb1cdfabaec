"""Snapshot transfer to a member whose next entry is no longer in the leader's memory.

The core requests chunks by offset; the owner reads, stores and verifies the body. One chunk is in flight per
member. Each response contains the offset up to which the member has stored the body, so a transfer can resume
after a lost message, a restart or a change of leader.
"""

from __future__ import annotations

from ponor_raft.entry import SnapshotMeta
from ponor_raft.follower_progress import FollowerProgress, ProgressState
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import SnapshotAck, SnapshotChunk
from ponor_raft.ready import SendSnapshot
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication


class SnapshotSending:
    """The leader's side; exists for one term."""

    def __init__(self, replica: Replica, replication: Replication) -> None:
        self._replica = replica
        self._replication = replication

    def flush(self) -> None:
        """Instruct the owner to send the next chunk to every member that waits for one."""
        for peer, progress in self._replication.progress.items():
            if progress.state is ProgressState.SNAPSHOT and not progress.snapshot_under_way:
                progress.snapshot_under_way = True
                progress.snapshot_waited_ticks = 0
                self._replica.outbox.snapshots.append(
                    SendSnapshot(peer, self._replica.term, progress.snapshot_index, progress.snapshot_offset)
                )

    def on_ack(self, ack: SnapshotAck) -> bool:
        """Handle a response; return whether the commit index moved."""
        progress = self._replication.progress[ack.sender]
        progress.heard_ticks_ago = 0
        if ack.installed:
            return self._replication.on_snapshot_installed(ack.sender, ack.index)
        if progress.state is ProgressState.SNAPSHOT and ack.index >= progress.snapshot_index:
            _note_offset(progress, ack)
        return False

    def unreachable(self, peer: ReplicaId) -> None:
        """Handle the probable loss of the chunk in flight: retry it after a pause."""
        progress = self._replication.progress.get(peer)
        if progress is not None and progress.state is ProgressState.SNAPSHOT:
            progress.snapshot_waited_ticks = max(
                progress.snapshot_waited_ticks,
                self._replica.limits.snapshot_retry_ticks - self._replica.limits.heartbeat_ticks,
            )

    def tick(self) -> None:
        """Resend unanswered chunks."""
        for progress in self._replication.progress.values():
            if progress.state is not ProgressState.SNAPSHOT:
                continue
            progress.snapshot_waited_ticks += 1
            if progress.snapshot_waited_ticks >= self._replica.limits.snapshot_retry_ticks:
                if progress.snapshot_offset_behind is not None:
                    progress.snapshot_offset = progress.snapshot_offset_behind
                    progress.snapshot_offset_behind = None
                progress.snapshot_under_way = False


def _note_offset(progress: FollowerProgress, ack: SnapshotAck) -> None:
    """Continue after the part that the member has stored.

    If the member's offset is below the offset that was sent, the response is stale or the member lost data. A
    newer response follows a stale one. If none arrives before the next retry, the retry goes back to the
    member's offset.
    """
    if ack.index == progress.snapshot_index and ack.next_offset <= progress.snapshot_offset:
        if ack.next_offset < progress.snapshot_offset:
            progress.snapshot_offset_behind = ack.next_offset
        return
    progress.snapshot_index = ack.index
    progress.snapshot_offset = ack.next_offset
    progress.snapshot_offset_behind = None
    progress.snapshot_under_way = False


class SnapshotReceiving:
    """The follower's side."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._with_owner: tuple[int, int] | None = (
            None  # index and offset of the chunk that the owner stores now
        )
        self._with_owner_ticks = 0

    def on_chunk(self, chunk: SnapshotChunk) -> None:
        """Pass a chunk to the owner, unless the log already contains the snapshot.

        If the log contains it, acknowledge every chunk (etcd-io/etcd #18055).
        """
        replica = self._replica
        if chunk.meta.index <= replica.log.commit:
            self.acknowledge_installed(chunk.meta)
            return
        if not 0 <= chunk.offset <= chunk.offset + len(chunk.data) <= chunk.meta.size_bytes:
            replica.drop("malformed chunk")
            return
        if replica.outbox.durable_hard_state.term < replica.term:
            replica.drop(
                "chunk before its term is durable"
            )  # otherwise the snapshot's term could be above the durable term after a crash
            return
        key = (chunk.meta.index, chunk.offset)
        if self._with_owner == key:
            replica.drop("chunk is still being processed")
            return
        self._with_owner = key
        self._with_owner_ticks = 0
        replica.outbox.chunks.append(chunk)

    def keep(self, chunk: SnapshotChunk, next_offset: int) -> None:
        """Acknowledge that the owner has the body up to `next_offset`."""
        assert 0 <= next_offset <= chunk.meta.size_bytes
        if self._with_owner == (chunk.meta.index, chunk.offset):
            self._with_owner = None
        replica = self._replica
        if replica.leader is not None and replica.leader != replica.own:
            replica.outbox.send(
                SnapshotAck(
                    replica.own, replica.leader, replica.term, chunk.meta.index, next_offset, installed=False
                )
            )

    def restore(self, meta: SnapshotMeta) -> None:
        """Restart the log after a durable and verified snapshot.

        The log does not change if the owner has already applied the entries up to the snapshot.

        Compare with the delivered index, not the commit index: the snapshot contains the entries between
        them, so they must not be delivered again.
        """
        replica = self._replica
        log = replica.log
        if meta.index > log.delivered:
            if log.term_at(meta.index) == meta.term:
                log.skip_to(meta.index)
            else:
                log.reset(meta.index, meta.term)
                replica.configurations.reset(meta.index, meta.membership)
        self.acknowledge_installed(meta)

    def acknowledge_installed(self, meta: SnapshotMeta) -> None:
        """Acknowledge the snapshot as soon as everything recorded so far is durable."""
        replica = self._replica
        if replica.leader is not None and replica.leader != replica.own:
            replica.outbox.send_when_durable(
                SnapshotAck(
                    replica.own, replica.leader, replica.term, meta.index, meta.size_bytes, installed=True
                )
            )

    def tick(self) -> None:
        """After `snapshot_retry_ticks` accept the same chunk again, in case the owner lost it."""
        if self._with_owner is not None:
            self._with_owner_ticks += 1
            if self._with_owner_ticks >= self._replica.limits.snapshot_retry_ticks:
                self._with_owner = None
