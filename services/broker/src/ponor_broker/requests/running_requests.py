"""Requests whose answers are produced later, and their refusal when permission to answer is withdrawn.

An answer may be sent only if this broker had permission (`Serving`) from the request's start until the answer
was ready. Permission is checked again when the answer is ready, because the process may have been paused in
between. If it was withdrawn, the work is dropped and the request starts again: handlers with
`WhenFenced.REFUSES` then answer with errors; for other handlers, the connection is closed. A withdrawal
restarts all waiting requests in this way, a few per event-loop turn.

Produce is excluded: its answer states that an append is durable, which stays true under a new leader, or
contains an error for an append that the log refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_runtime.clock import Clock

from ponor_broker.requests.connection import CloseConnectionError, PendingAnswer, Response
from ponor_broker.requests.request_flow import LARGE_CONTROL_BYTES
from ponor_broker.serving import Serving

WITHDRAWAL_TURN_NS_MAX: Final = 4_000_000
"""Longest time in one event-loop turn for refusing waiting requests; each turn refuses at least one."""

BeginAgain: TypeAlias = Callable[[], "Response | asyncio.Future[Response]"]
"""Starts a request again, to get an error answer. Only called while permission is withdrawn.

Raises:
    CloseConnectionError: this API has no error answer."""


class RequestUnderWay(PendingAnswer):
    """The place of a running request: a request that a task handles, or a parked fetch."""

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
        self._end()
        self._work.cancel()

    def free(self, kept_bytes: int) -> None:
        """Free the frame of a large request that waits. `kept_bytes` is the memory that the request still
        needs and that no other bound counts. If permission is withdrawn afterwards, the connection is closed.
        """
        kept_bytes = max(kept_bytes, LARGE_CONTROL_BYTES)
        if self.connection is not None and self.frame_bytes > kept_bytes:
            self._again = _refuse_to_begin_again
            self.connection.freed(self, kept_bytes)

    def withdraw(self) -> None:
        """Drop the work and start the request again, because the broker must not answer; once per epoch."""
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
                # The broker has permission again: a second start would execute the request, perhaps twice.
                raise CloseConnectionError("permission to answer was withdrawn while the request ran")
            answer = self._again()
        except Exception as error:  # noqa: BLE001 - any error closes this connection only
            self._fail(error)
            return
        if isinstance(answer, asyncio.Future):
            self._follow(answer)
        else:
            self._finish(answer)

    def _worked(self, work: asyncio.Future[Response]) -> None:
        error = CloseConnectionError("the request was cancelled") if work.cancelled() else work.exception()
        if self.is_answered or work is not self._work:
            return  # `_begin_again` replaced this work, or the request is answered
        if self.connection is None:
            self._end()
        elif not self._owner.may_be_sent(self._epoch):
            self._begin_again()
        elif error is not None:
            self._fail(error)
        else:
            self._finish(work.result())

    def _finish(self, response: Response) -> None:
        self._end()
        self.answer(response)

    def _fail(self, error: BaseException) -> None:
        self._end()
        if self.connection is not None:
            self.connection.failed(error)

    def _end(self) -> None:
        self._owner.forget(self)
        self._again = _refuse_to_begin_again  # drops the references to the frame and the reply


def _refuse_to_begin_again() -> Response:
    raise CloseConnectionError("permission to answer was withdrawn while a large request waited")


class RequestsUnderWay:
    """The running requests of one broker."""

    def __init__(self, serving: Serving, clock: Clock) -> None:
        self.serving = serving
        self._clock = clock
        self._requests: dict[RequestUnderWay, None] = {}
        self._withdrawn: deque[RequestUnderWay] = deque()
        serving.listeners.append(self._permission_changed)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, work: asyncio.Future[Response], epoch: int, again: BeginAgain) -> RequestUnderWay:
        """Add a request that began in this serving epoch."""
        request = RequestUnderWay(self, work, epoch, again)
        self._requests[request] = None
        return request

    def forget(self, request: RequestUnderWay) -> None:
        """Remove a request that was answered, or whose client has disconnected."""
        self._requests.pop(request, None)

    def may_be_sent(self, epoch: int) -> bool:
        """Return whether the answer of a request that began in this serving epoch may be sent. A request that
        was started again after a withdrawal has a newer epoch, so its refusal may be sent.
        """
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
