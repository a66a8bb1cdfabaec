"""Outgoing messages that may be sent immediately, messages that wait for the disk, and the writes for which
they wait.

Rule (invariant 7): a vote or an acknowledgement is never sent before everything that it promises is durable.
Such a message is sent after the next `Persist` or, if there is nothing new to write, after the writes in
flight. So everything that was recorded before a message is on disk when the message is sent, and a message
need not list what it depends on.
"""

from __future__ import annotations

from collections import deque

from ponor_raft.entry import HardState
from ponor_raft.log_window import LogWindow
from ponor_raft.messages import AppendResponse, Message, SnapshotChunk
from ponor_raft.ready import LostEntries, Persist, ReadReady, SendSnapshot


class _Writing:
    """A `Persist` in flight, and the messages held back until it ends."""

    __slots__ = ("hard_state", "held", "sequence")

    def __init__(self, sequence: int, hard_state: HardState | None) -> None:
        self.sequence = sequence
        self.hard_state = hard_state
        self.held: list[Message] = []


class Outbox:
    """Collects instructions until `RaftNode.ready` takes them."""

    def __init__(self, hard_state: HardState) -> None:
        self.messages: list[Message] = []
        self.chunks: list[SnapshotChunk] = []
        self.snapshots: list[SendSnapshot] = []
        self.reads: list[ReadReady] = []
        self.lost: LostEntries | None = None
        self.durable_hard_state = hard_state
        self._held: list[Message] = []
        self._writing: deque[_Writing] = deque()
        self._given_hard_state = hard_state
        self._sequence = 0

    def send(self, message: Message) -> None:
        """Queue a message that does not depend on durable state and may be sent immediately."""
        self.messages.append(message)

    def send_when_durable(self, message: Message) -> None:
        """Queue a message that may be sent only when the replica's current state is durable."""
        _hold(self._held, message)

    def persist(self, hard_state: HardState, log: LogWindow) -> Persist | None:
        """Create the next write, if there is anything to write."""
        changed = hard_state != self._given_hard_state
        if not changed and log.handed_out == log.last_index:
            self._settle_held()
            return None
        self._sequence += 1
        entries = log.begin_write(self._sequence)
        given = hard_state if changed else None
        self._given_hard_state = hard_state
        self._writing.append(_Writing(self._sequence, given))
        held, self._held = tuple(self._held), []
        return Persist(self._sequence, given, entries, held, log.take_beginning())

    def persisted(self, sequence: int) -> None:
        """Handle the end of the oldest write."""
        assert self._writing, "a write ended, but no write is in progress"
        writing = self._writing.popleft()
        assert writing.sequence == sequence, f"write {writing.sequence} must end before {sequence}"
        if writing.hard_state is not None:
            self.durable_hard_state = writing.hard_state
        self.messages += writing.held

    def _settle_held(self) -> None:
        """Handle held messages if there is nothing new to write: attach them to the last write in flight, or
        send them now if there is none.
        """
        if not self._held:
            return
        if self._writing:
            for message in self._held:
                _hold(self._writing[-1].held, message)
        else:
            self.messages += self._held
        self._held.clear()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is queued except for held messages."""
        return not (self.messages or self.reads or self.chunks or self.snapshots or self.lost)

    def take_messages(self) -> tuple[Message, ...]:
        messages, self.messages = tuple(self.messages), []
        return messages

    def take_chunks(self) -> tuple[SnapshotChunk, ...]:
        chunks, self.chunks = tuple(self.chunks), []
        return chunks

    def take_snapshots(self) -> tuple[SendSnapshot, ...]:
        snapshots, self.snapshots = tuple(self.snapshots), []
        return snapshots

    def take_reads(self) -> tuple[ReadReady, ...]:
        reads, self.reads = tuple(self.reads), []
        return reads

    def take_lost(self) -> LostEntries | None:
        lost, self.lost = self.lost, None
        return lost


def _hold(held: list[Message], message: Message) -> None:
    """Add a message. A newer acknowledgement replaces the last one and repetitions are dropped, so that held
    messages do not accumulate while the disk stalls.
    """
    if held and isinstance(message, AppendResponse):
        last = held[-1]
        if (
            isinstance(last, AppendResponse)
            and last.to == message.to
            and last.term == message.term
            and last.match_index <= message.match_index
        ):
            held[-1] = message
            return
    if message not in held:
        held.append(message)
