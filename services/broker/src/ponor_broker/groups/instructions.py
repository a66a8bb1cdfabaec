"""Instructions of the group state machine: answers, timers, records to write. The shard executes
them in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.member import RequestId
from ponor_broker.groups.records import GroupRecord


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A row of the member list that only the leader gets."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a JoinGroup. If it contains an error, only the member id is valid."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """The answer to a LeaveGroup: one result per leaving member, in order."""

    results: tuple[tuple[MemberClaim, ErrorCode], ...]


AnswerBody: TypeAlias = JoinAnswer | SyncAnswer | LeaveAnswer


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a waiting request. Every request is answered exactly once."""

    request: RequestId
    body: AnswerBody


class TimerKind(Enum):
    """The purpose of a timer."""

    SESSION = "session"
    """Of a member: it sent no heartbeat for its session timeout, or its first join took too long."""
    JOIN = "join"
    """Of the group: the time for members to rejoin has passed."""
    SYNC = "sync"
    """Of the group: the time for joined members to sync has passed."""
    REBALANCE = "rebalance"
    """Of a member of a consumer group: the time to revoke partitions has passed."""
    ASSIGNMENT = "assignment"
    """Of a consumer group: the next target may be computed."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Identifies a timer within a group; another `SetTimer` moves it."""

    kind: TimerKind
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `timer_fired(timer)` of the membership after this delay."""

    timer: Timer
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel the timer, if it is set."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """Write the record; when it is durable or has failed, call `Membership.written(write_id, error)`."""

    write_id: int
    record: GroupRecord


Instruction: TypeAlias = Answer | SetTimer | CancelTimer | WriteGroup


class Outbox:
    """Collects the instructions of one event, in order."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._writes = 0

    def answer(self, request: RequestId, body: AnswerBody) -> None:
        """Add an answer."""
        self._instructions.append(Answer(request, body))

    def set_timer(self, timer: Timer, delay_ms: int) -> None:
        """Add a `SetTimer`."""
        assert delay_ms >= 0
        self._instructions.append(SetTimer(timer, delay_ms))

    def cancel_timer(self, timer: Timer) -> None:
        """Add a `CancelTimer`."""
        self._instructions.append(CancelTimer(timer))

    def write(self, record: GroupRecord) -> int:
        """Add a write; return its id."""
        self._writes += 1
        self._instructions.append(WriteGroup(self._writes, record))
        return self._writes

    def drain(self) -> list[Instruction]:
        """Remove and return all instructions."""
        instructions, self._instructions = self._instructions, []
        return instructions
