"""Commit notices wait briefly for an append that makes them unnecessary."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ponor_controller.consensus.commit_notices import WAIT_SECONDS, CommitNotices
from ponor_raft.entry import Entry
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import AppendRequest, HeartbeatRequest, Message
from ponor_runtime.identity import NodeId

LEADER, FIRST, SECOND = (ReplicaId(NodeId(number), bytes([number]) * 16) for number in (1, 2, 3))


def notice(to: ReplicaId, commit: int) -> AppendRequest:
    return AppendRequest(LEADER, to, 1, 9, 1, (), commit)


def append(to: ReplicaId, index: int) -> AppendRequest:
    return AppendRequest(LEADER, to, 1, index - 1, 1, (Entry(index, 1, b"data"),), index - 1)


class Sent:
    """Sent messages, in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)


async def test_an_append_makes_the_notice_of_its_follower_unnecessary() -> None:
    sent = Sent()
    notices = CommitNotices(sent)
    notices.send([notice(FIRST, 9), notice(SECOND, 9)])
    assert sent.messages == []
    carrying = append(FIRST, 10)
    notices.send([carrying])
    await asyncio.sleep(5 * WAIT_SECONDS)
    assert sent.messages == [carrying, notice(SECOND, 9)]


async def test_only_the_newest_notice_is_sent_without_an_append() -> None:
    sent = Sent()
    notices = CommitNotices(sent)
    notices.send([notice(FIRST, 7)])
    notices.send([notice(FIRST, 9)])
    await asyncio.sleep(5 * WAIT_SECONDS)
    assert sent.messages == [notice(FIRST, 9)]


async def test_other_messages_never_wait() -> None:
    sent = Sent()
    heartbeat = HeartbeatRequest(LEADER, FIRST, 1, 9, 1)
    CommitNotices(sent).send([heartbeat, notice(FIRST, 9)])
    assert sent.messages == [heartbeat]


async def test_a_closed_driver_sends_nothing() -> None:
    sent = Sent()
    notices = CommitNotices(sent)
    notices.send([notice(FIRST, 9)])
    notices.close()
    await asyncio.sleep(5 * WAIT_SECONDS)
    assert sent.messages == []
