"""What the two services ask of the consensus: whether this controller leads, who does if not, and how current it is.

What lives here: the protocol, in the services' own terms. Terms, votes and logs stay behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from ponor.common.v1 import error_pb2
from ponor_rpc.errors import RETRY_SAME_OPERATION, OperationError

from ponor_controller.server.sessions.lost_history import Reign

T = TypeVar("T")


class Leading(Protocol):
    """Leadership as sessions and subscriptions see it."""

    @property
    def is_leading(self) -> bool:
        """Whether operations may be executed here: this controller is the leader, and the opening entry of its term is committed and applied."""
        ...

    @property
    def reign(self) -> Reign | None:
        """The term in which this controller leads, or led last; None before it led."""
        ...

    def term_at(self, index: int) -> int | None:
        """The term of the entry at an index; None if it is not in memory."""
        ...

    @property
    def leader_address(self) -> str:
        """HOST:PORT at which another controller leads, as far as this one knows; empty when it knows of none, or is about to lead itself."""
        ...

    @property
    def commit_age_ms(self) -> int:
        """How long ago the own commit index was known to be the newest.

        At the leader the time since the beginning of the newest round of heartbeats that a majority answered, so it rises when the leader is cut off or was replaced; at others the time since
        they last heard a leader, or since their start.
        """
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Hear of every change of `is_leading` and `leader_address`, after it happened and before anything else is executed."""
        ...

    async def read_index(self) -> int:
        """An index that an image must reach before a linearizable read; a majority confirmed the leader after the call.

        Raises:
            OperationError: NOT_LEADER when no leader could be confirmed.
        """
        ...


async def confirm_refusals(
    work: Awaitable[T], leading: Leading, confirm: Callable[[], Awaitable[object]]
) -> T:
    """What `work` returns. A refusal that the caller takes for final leaves only after a majority confirmed this leader: one that was deposed while it did not run refuses by old rows.

    Args:
        work: what was asked for.
        leading: whether this controller leads.
        confirm: waits until everything proposed is committed and the leader is confirmed.

    Raises:
        OperationError: what `work` raised; NOT_LEADER when it refused and this leader could not be confirmed.
    """
    try:
        return await work
    except OperationError as error:
        if error.code not in RETRY_SAME_OPERATION and leading.is_leading:
            await confirm()
            if not leading.is_leading:  # a follower's read is confirmed by asking the leader
                raise not_leading(leading, "a refusal") from None
        raise


def not_leading(leading: Leading, what: str) -> OperationError:
    """The refusal that sends a node to the leader."""
    address = leading.leader_address
    where = f"the leader is at {address}" if address else "no leader is known here; ask another controller"
    return OperationError(
        error_pb2.ERROR_CODE_NOT_LEADER,
        f"{what}: this controller does not lead; {where}",
        leader_address=address,
    )
