"""Requests whose answers come later, and what becomes of them when the broker may not answer any more.

An answer may leave only if this broker had permission (`Serving`) from the request's start until its answer was ready. The permission is looked at anew when
the answer is ready, because the process may have been paused since the last look. If it was withdrawn in between, the work is dropped, and the request
begins again: handlers that `refuses_when_fenced` then answer with errors, and every other connection is closed. The withdrawal itself does this
for all requests that wait, a few in each turn of the loop.

Produce is not among them. Its answer says that an append is durable, which is true whoever leads the partition by then, and an append that was refused by the
log is answered with an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_runtime.clock import Clock

from ponor_broker.requests.connection import CloseConnectionError, PendingAnswer, Response
from ponor_broker.serving import Serving

WITHDRAWAL_TURN_NS_MAX: Final = 4_000_000
"""A turn of the loop refuses waiting requests for no longer than this, and at least one."""

BeginAgain: TypeAlias = Callable[[], "Response | asyncio.Future[Response]"]
"""Answers a request with nothing but errors. Only called while permission is withdrawn.

Raises:
    CloseConnectionError: this API has no such answer.
"""


class RequestUnderWay(PendingAnswer):
    """The place of a request that a task or a parked fetch works on."""

    __slots__ = ("_again", "_epoch", "_owner", "_work")

    def __init__(
        self, owner: RequestsUnderWay, work: asyncio.Future[Response], epoch: int, again: BeginAgain
    ) -> None:
        super().__init__()
        self._owner = owner
        self._epoch = epoch
        self._again = again
        self._follow(work)

    def abandon(self) -> None:
        super().abandon()
        self._owner.forget(self)
        self._work.cancel()

    def withdraw(self) -> None:
        """The broker may not answer: drop the work and begin again, unless that was done already."""
        if self.connection is None or self.is_answered or self._epoch == self._owner.serving.epoch:
            return
        work = self._work
        self._begin_again()
        work.cancel()

    def _follow(self, work: asyncio.Future[Response]) -> None:
        self._work = work
        work.add_done_callback(self._worked)

    def _begin_again(self) -> None:
        self._epoch = self._owner.serving.epoch
        try:
            if self._owner.serving.refusal is None:
                # Begun again it would not be refused but carried out, perhaps for the second time.
                raise CloseConnectionError("permission to answer was withdrawn while the request ran")
            answer = self._again()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            self._fail(error)
            return
        if isinstance(answer, asyncio.Future):
            self._follow(answer)
        else:
            self._finish(answer)

    def _worked(self, work: asyncio.Future[Response]) -> None:
        error = CloseConnectionError("the request was cancelled") if work.cancelled() else work.exception()
        if self.is_answered or work is not self._work:
            return  # the work was dropped
        if self.connection is None:
            self._owner.forget(self)
        elif not self._owner.may_leave(self._epoch):
            self._begin_again()
        elif error is not None:
            self._fail(error)
        else:
            self._finish(work.result())

    def _finish(self, response: Response) -> None:
        self._owner.forget(self)
        self.answer(response)

    def _fail(self, error: BaseException) -> None:
        self._owner.forget(self)
        if self.connection is not None:
            self.connection.failed(error)


class RequestsUnderWay:
    """All of one broker."""

    def __init__(self, serving: Serving, clock: Clock) -> None:
        self.serving = serving
        self._clock = clock
        self._requests: dict[RequestUnderWay, None] = {}
        self._withdrawn: deque[RequestUnderWay] = deque()
        serving.listeners.append(self._permission_changed)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, work: asyncio.Future[Response], epoch: int, again: BeginAgain) -> RequestUnderWay:
        """A request that began in this serving epoch."""
        request = RequestUnderWay(self, work, epoch, again)
        self._requests[request] = None
        return request

    def forget(self, request: RequestUnderWay) -> None:
        """It was answered, or nobody waits for its answer."""
        self._requests.pop(request, None)

    def may_leave(self, epoch: int) -> bool:
        """Whether an answer that was begun in this serving epoch may leave. A refusal that was begun after the withdrawal may."""
        self.serving.check()
        return epoch == self.serving.epoch

    def _permission_changed(self, withdrawn: bool) -> None:
        if withdrawn:
            if not self._withdrawn:
                asyncio.get_running_loop().call_soon(self._withdraw_some)
            self._withdrawn.extend(self._requests)

    def _withdraw_some(self) -> None:
        end_ns = self._clock.monotonic_ns() + WITHDRAWAL_TURN_NS_MAX
        while self._withdrawn:
            self._withdrawn.popleft().withdraw()
            if self._clock.monotonic_ns() >= end_ns:
                break
        if self._withdrawn:
            asyncio.get_running_loop().call_soon(self._withdraw_some)
