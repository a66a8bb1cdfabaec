"""Leadership as services and duties see it: whether this controller leads, and if not, which one leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ponor.common.v1 import error_pb2
from ponor_rpc.errors import RETRY_SAME_OPERATION, OperationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """The leadership of one controller in one term.

    Attributes:
        term: term of the log.
        first_index: index of the opening entry.
        nonce: random bytes that the leader draws.
    """

    term: int
    first_index: int
    nonce: bytes


class Leading(Protocol):
    """Leadership of the cluster, as this controller sees it."""

    @property
    def is_leading(self) -> bool:
        """Whether this controller leads and the opening entry of its term is committed and applied."""
        ...

    @property
    def leader_term(self) -> LeaderTerm | None:
        """The term in which this controller leads, or led last; None before it led."""
        ...

    def term_at(self, index: int) -> int | None:
        """The term of the entry at an index; None if it is not in memory."""
        ...

    @property
    def leader_address(self) -> str:
        """HOST:PORT of the leader if it is another controller and its address is known; otherwise empty."""
        ...

    @property
    def commit_age_ms(self) -> int:
        """How long ago this controller's commit index was last known to be the newest.

        At a leader: the time since the begin of the newest round of heartbeats that a majority answered. It
        rises when the leader is partitioned or was replaced. At other controllers: the time since a leader
        was last heard, or since the start.
        """
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of `is_leading` and `leader_address`, before anything else
        runs.
        """
        ...

    async def read_index(self) -> int:
        """The index that an image must reach before a linearizable read.

        When it returns, a majority has confirmed the leader since the call began.

        Raises:
            OperationError: NOT_LEADER when no leader could be confirmed.
        """
        ...


async def confirm_refusals(
    work: Awaitable[T], leading: Leading, confirm: Callable[[], Awaitable[object]]
) -> T:
    """Return the result of `work`. Raise its refusal only after a majority confirmed this leader.

    Otherwise a leader that was suspended and replaced in the meantime could refuse a request because of old
    rows.

    Args:
        work: the request.
        leading: whether this controller leads.
        confirm: waits until all proposed batches are committed and the leader is confirmed.

    Raises:
        OperationError: the error of `work`; NOT_LEADER if `work` raised one and this leader could not be
            confirmed.
    """
    try:
        return await work
    except OperationError as error:
        if error.code not in RETRY_SAME_OPERATION and leading.is_leading:
            await confirm()
            if not leading.is_leading:  # `confirm` also succeeds at a follower, by asking the leader
                raise not_leading(leading, "a refusal") from None
        raise


def not_leading(leading: Leading, what: str) -> OperationError:
    """The error that redirects a node to the leader."""
    address = leading.leader_address
    where = f"the leader is at {address}" if address else "no leader is known here; ask another controller"
    return OperationError(
        error_pb2.ERROR_CODE_NOT_LEADER,
        f"{what}: this controller does not lead; {where}",
        leader_address=address,
    )
