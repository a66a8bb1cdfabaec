"""Begin and end leadership in the parts of the controller, in the order that they require."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ponor_metadata.client.seen_history import NONCE_BYTES
from ponor_raft.errors import NotLeaderError
from ponor_raft.ready import Leadership
from ponor_runtime.randomness import Randomness

from ponor_controller.consensus.raft_consensus import RaftConsensus
from ponor_controller.kernel.answers import Answers
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.leading import LeaderTerm, not_leading
from ponor_controller.kernel.proposer import Proposer


class ControllerLeadership:
    """Implements `Leading`.

    A new leader runs `first_steps` before it executes operations. These steps propose records and do not
    wait.
    """

    def __init__(
        self,
        consensus: RaftConsensus,
        proposer: Proposer,
        answers: Answers,
        lanes: Lanes,
        randomness: Randomness,
        first_steps: Sequence[Callable[[], None]],
    ) -> None:
        self._consensus = consensus
        self._proposer = proposer
        self._answers = answers
        self._lanes = lanes
        self._randomness = randomness
        self.leader_term: LeaderTerm | None = None
        self._first_steps = first_steps
        self._listeners: list[Callable[[], None]] = []
        self._leads = asyncio.Event()
        consensus.on_leadership(self._changed)
        consensus.on_leading(self._begun)

    @property
    def is_leading(self) -> bool:
        return self._proposer.leads

    def term_at(self, index: int) -> int | None:
        return self._consensus.term_at(index)

    @property
    def leader_address(self) -> str:
        if self._consensus.is_leader:
            return ""
        return self._consensus.leader_address() or ""

    @property
    def commit_age_ms(self) -> int:
        return self._consensus.leaderless_ns // 1_000_000

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def began(self) -> None:
        """Wait until this controller leads."""
        await self._leads.wait()

    async def read_index(self) -> int:
        try:
            return await self._consensus.read_index()
        except NotLeaderError:
            raise not_leading(self, "a linearizable read") from None

    def _begun(self) -> None:
        self._proposer.begin()
        # The opening entry is the newest entry: a new leader proposes nothing before it is committed.
        nonce = self._randomness.token(NONCE_BYTES)
        self.leader_term = LeaderTerm(self._consensus.term, self._proposer.last_index, nonce)
        for step in self._first_steps:
            step()
        self._leads.set()
        self._tell()

    def _changed(self, _: Leadership) -> None:
        if self._proposer.leads and not self._consensus.leading:
            self.end()
        else:
            self._tell()

    def end(self) -> None:
        """Leadership ended, or the controller stops: refuse all waiting operations."""
        self._leads.clear()
        refusal = not_leading(self, "operation")
        self._proposer.end(refusal)
        for pending in self._lanes.empty():
            self._answers.refuse(pending, refusal)
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
