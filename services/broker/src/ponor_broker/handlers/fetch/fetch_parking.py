"""Parked fetches: each waits until enough data arrived, an error occurred, a partition in transit
serves again, or its time has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from ponor_runtime.telemetry import Telemetry

from ponor_broker.handlers.fetch.cold_reads import ColdReads
from ponor_broker.handlers.fetch.fetch_session import News
from ponor_broker.handlers.fetch.partition_fetch import PartitionFetch
from ponor_broker.partitions.errors import PartitionInTransitError
from ponor_broker.partitions.handoff.transit_parking import ParkedRequest, TransitParking
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.watchers import ENOUGH_BYTES
from ponor_broker.requests.connection import Response
from ponor_broker.requests.request_flow import AnswerBacklog


class TransitWait:
    """The places of one fetch in `partitions.handoff.transit_parking`. `is_over` is set when a partition
    serves again, or the time has passed.
    """

    __slots__ = ("_news", "_places", "is_over")

    def __init__(self) -> None:
        self._news: News | None = None
        self._places: list[ParkedRequest] = []
        self.is_over = False

    def take_places(self, parking: TransitParking, transits: Sequence[PartitionInTransitError]) -> bool:
        """Take a place for each of these partitions. Return False and take none if there is no room, or if
        requests can no longer wait for one of the partitions.
        """
        for transit in transits:
            place = parking.park(transit.key, self._look_again)
            if place is None:
                self._leave()
                return False
            self._places.append(place)
        return True

    def beside(self, listen: Listen) -> Listen:
        """Return a `Listen` that reports the news of `listen` and the end of this wait."""

        def both(news: News) -> Callable[[], None]:
            self._news = news
            stop_listening = listen(news)

            def leave() -> None:
                stop_listening()
                self._leave()

            return leave

        return both

    def _look_again(self) -> None:
        self.is_over = True
        if self._news is not None:
            self._news(0, True)

    def _leave(self) -> None:
        self._news = None
        for place in self._places:
            place.leave()
        self._places.clear()


Listen: TypeAlias = Callable[[News], Callable[[], None]]
"""Calls a callback with news until the returned function is called."""
Finish: TypeAlias = Callable[[asyncio.Future[Response]], None]
"""Completes the answer when the wait has ended."""


class FetchParking:
    """Parked fetches of a broker. At the bound, fetches are answered immediately instead of parked."""

    def __init__(self, parked_max: int, telemetry: Telemetry) -> None:
        self._parked_max = parked_max
        self._parked = 0
        telemetry.gauge("ponor_fetches_parked", lambda: self._parked)

    @property
    def is_full(self) -> bool:
        """Whether no more fetch may be parked."""
        return self._parked >= self._parked_max

    def park(
        self,
        *,
        missing_bytes: int,
        wait_ms: int,
        listen: Listen,
        finish: Finish,
        recount: Callable[[], int] | None = None,
    ) -> asyncio.Future[Response]:
        """Return a future for the answer. `finish` is called with this future after at most `wait_ms`, unless
        the future was cancelled. `recount` returns the missing bytes after growth of unknown size; without
        it, such growth ends the wait.
        """
        assert not self.is_full
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()
        missing = missing_bytes
        is_waiting = True

        def news(size_bytes: int, must_answer: bool) -> None:
            nonlocal missing
            if recount is not None and is_waiting and size_bytes >= ENOUGH_BYTES and not must_answer:
                missing = recount()
            else:
                missing -= size_bytes
            if missing <= 0 or must_answer:
                end()

        def end() -> None:
            if is_waiting:
                leave()
                if not answer.done():
                    finish(answer)

        def leave() -> None:
            nonlocal is_waiting
            if is_waiting:
                is_waiting = False
                timer.cancel()
                stop_listening()

        def ended(_: asyncio.Future[Response]) -> None:
            self._parked -= 1
            leave()

        timer = loop.call_later(wait_ms / 1000, end)
        self._parked += 1
        stop_listening = listen(news)
        answer.add_done_callback(ended)
        return answer


class ReadBounds(NamedTuple):
    """The bounds that Fetch and ShareFetch have in common: reads of old data, waiting requests, answers."""

    cold_reads: ColdReads
    parking: FetchParking
    backlog: AnswerBacklog


def listen_to(parts: list[PartitionFetch], news: News) -> Callable[[], None]:
    """Report news of partitions that belong to no session."""

    def advanced(partition: Partition, size_bytes: int) -> None:
        news(size_bytes, not partition.is_serving)

    watched = [one.partition for one in parts if one.partition is not None]
    for one in parts:
        if one.partition is not None:
            one.partition.watch(advanced, committed=one.is_committed)

    def leave() -> None:
        for partition in watched:
            partition.unwatch(advanced)

    return leave


def copy_outcome(work: asyncio.Future[Response], answer: asyncio.Future[Response]) -> None:
    """Complete `answer` with the result of `work`, and cancel `work` if `answer` is cancelled."""
    work.add_done_callback(partial(_copy, answer))
    answer.add_done_callback(lambda ended: work.cancel() if ended.cancelled() else None)


def _copy(answer: asyncio.Future[Response], work: asyncio.Future[Response]) -> None:
    if answer.done():
        return
    if work.cancelled():
        answer.cancel()
    elif (error := work.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(work.result())
