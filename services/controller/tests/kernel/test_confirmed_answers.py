"""Answers of operations that changed nothing wait for confirmation by a majority."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ponor.common.v1 import error_pb2
from ponor_controller.consensus.ports import CommitListener, LeadershipListener, LogEntry
from ponor_controller.kernel.answers import ConfirmedAnswers
from ponor_raft.errors import NotLeaderError
from ponor_raft.ready import Leadership, Role
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId


@dataclass
class AskedConsensus:
    """A leader whose majority answers when the test requests it."""

    leading: bool = True
    term: int = 3
    rounds: list[asyncio.Future[int]] = field(default_factory=list)

    @property
    def is_leader(self) -> bool:
        return self.leading

    @property
    def accepts_proposals(self) -> bool:
        return self.leading

    @property
    def has_room(self) -> bool:
        return True

    def room_problem(self, size_bytes: int) -> str | None:
        return None

    def on_compaction(self, listener: Callable[[], None]) -> None:
        raise NotImplementedError

    @property
    def leadership(self) -> Leadership:
        return Leadership(Role.LEADER if self.leading else Role.FOLLOWER, self.term, None)

    def leader_address(self) -> str | None:
        return "other:1"

    async def read_index(self) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.rounds.append(answer)
        return await answer

    def propose(self, entry: LogEntry) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def on_commit(self, listener: CommitListener) -> None:
        raise NotImplementedError

    def on_leadership(self, listener: LeadershipListener) -> None:
        raise NotImplementedError

    def on_leading(self, listener: Callable[[], None]) -> None:
        raise NotImplementedError

    async def transfer(self, node_id: NodeId) -> None:
        raise NotImplementedError


class Desk:
    """Records answers when they are sent."""

    def __init__(self) -> None:
        self.consensus = AskedConsensus()
        self.confirmed = ConfirmedAnswers(self.consensus)
        self.given: list[str] = []
        self.refused: list[OperationError] = []

    def add(self, *names: str) -> None:
        for name in names:

            def give(name: str = name) -> None:
                self.given.append(name)

            self.confirmed.add(self.confirmed.term, give, self.refused.append)


async def _rounds(desk: Desk, count: int) -> Sequence[asyncio.Future[int]]:
    while len(desk.consensus.rounds) < count:
        await asyncio.sleep(0)
    return desk.consensus.rounds


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_answer_is_sent_after_a_round_that_began_later() -> None:
    desk = Desk()
    running = asyncio.create_task(desk.confirmed.run())
    desk.add("a", "b")
    first = (await _rounds(desk, 1))[0]
    desk.add("c")
    await _settle()
    assert desk.given == []
    first.set_result(7)
    second = (await _rounds(desk, 2))[1]
    assert desk.given == ["a", "b"], "c arrived during the first round, which does not cover it"
    second.set_result(7)
    await _settle()
    assert desk.given == ["a", "b", "c"]
    assert desk.refused == []
    assert len(desk.consensus.rounds) == 2, "nothing waits, so no round starts"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_a_majority_the_node_is_redirected() -> None:
    desk = Desk()
    desk.add("a")
    confirming = asyncio.create_task(desk.confirmed.confirm())
    (await _rounds(desk, 1))[0].set_exception(NotLeaderError("no answer"))
    await confirming
    assert desk.given == []
    (error,) = desk.refused
    assert (error.code, error.leader_address) == (error_pb2.ERROR_CODE_NOT_LEADER, "other:1")


async def test_a_follower_with_the_leaders_index_confirms_nothing() -> None:
    desk = Desk()
    desk.add("a")
    confirming = asyncio.create_task(desk.confirmed.confirm())
    round_ = (await _rounds(desk, 1))[0]
    desk.consensus.leading = False
    round_.set_result(9)
    await confirming
    assert desk.given == []
    assert len(desk.refused) == 1


async def test_a_decision_of_an_earlier_term_is_not_confirmed_by_a_later_one() -> None:
    desk = Desk()
    desk.add("a")
    confirming = asyncio.create_task(desk.confirmed.confirm())
    round_ = (await _rounds(desk, 1))[0]
    desk.consensus.term = (
        5  # deposed and elected again; the answer lacks the changes of the leader in between
    )
    round_.set_result(9)
    await confirming
    assert desk.given == []
    assert len(desk.refused) == 1
