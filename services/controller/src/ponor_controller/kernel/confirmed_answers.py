"""Answers that change nothing, and therefore prove nothing.

What lives here: the wait that makes them true. An answer with records behind it was agreed upon by a majority. A refusal, an idempotent repeat or an empty claim only
speaks of an image, and a leader that stood still while another one was elected has an old image and does not know it (etcd-io/etcd #20418). Such an
answer leaves only after a majority confirmed, in a round that began after the decision, that this controller leads the same term as then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ponor.common.v1 import error_pb2
from ponor_raft.errors import NotLeaderError
from ponor_rpc.errors import OperationError

from ponor_controller.consensus.ports import Consensus


class ConfirmedAnswers:
    """Answers waiting for the next round; bounded by the operations that sessions may have in flight."""

    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self._waiting: list[tuple[int, Callable[[], None], Callable[[OperationError], None]]] = []
        self._added = asyncio.Event()

    @property
    def term(self) -> int:
        """The term in which something is decided now."""
        return self._consensus.term

    def add(self, term: int, answer: Callable[[], None], refuse: Callable[[OperationError], None]) -> None:
        """Call `answer` once the leadership of `term`, in which it was decided, is confirmed; else `refuse`, with NOT_LEADER."""
        self._waiting.append((term, answer, refuse))
        self._added.set()

    async def run(self) -> None:
        """Confirm for ever."""
        while True:
            await self._added.wait()
            await self.confirm()

    async def confirm(self) -> None:
        """One round for all that wait; whoever comes during it waits for the next."""
        self._added.clear()
        waiting, self._waiting = self._waiting, []
        try:
            await self._consensus.read_index()
            leads = self._consensus.leading
        except NotLeaderError:
            leads = False
        for term, answer, refuse in waiting:
            if leads and term == self._consensus.term:
                answer()
            else:
                refuse(self._not_leader())

    def _not_leader(self) -> OperationError:
        return OperationError(
            error_pb2.ERROR_CODE_NOT_LEADER,
            "this controller stopped leading before the answer was confirmed; ask again",
            leader_address=self._consensus.leader_address() or "",
        )
