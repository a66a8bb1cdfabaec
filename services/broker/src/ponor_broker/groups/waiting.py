"""Requests that wait for the state machine's answer.

Bound: a member has at most one JoinGroup and one SyncGroup waiting; everything else is answered
within the call.
"""

from __future__ import annotations

import asyncio

from ponor_broker.groups.instructions import AnswerBody
from ponor_broker.groups.member import RequestId


class WaitingRequests:
    """Assigns numbers to requests and delivers their answers. Answers to disconnected clients are
    dropped.
    """

    def __init__(self) -> None:
        self._last = 0
        self._answers: dict[RequestId, asyncio.Future[AnswerBody]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def open(self) -> tuple[RequestId, asyncio.Future[AnswerBody]]:
        """Return a number for a new request, and the future of its answer."""
        self._last += 1
        request = RequestId(self._last)
        answer: asyncio.Future[AnswerBody] = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        return request, answer

    def settle(self, request: RequestId, body: AnswerBody) -> None:
        """Deliver an answer, exactly one per request."""
        answer = self._answers.pop(request)
        if not answer.done():
            answer.set_result(body)
