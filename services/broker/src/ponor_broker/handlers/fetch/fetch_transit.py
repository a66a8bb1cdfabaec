"""Fetches that meet a partition on the move: they wait until it is known who serves it, for a moment.

What lives here: the places of one fetch among the requests that wait (`partitions.transit_parking`), beside the news it waits for anyway. When such a
fetch is answered, and what it says of a partition that has not settled, is `fetch`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponor_broker.handlers.fetch.fetch_parking import Listen
from ponor_broker.handlers.fetch.fetch_session import News
from ponor_broker.partitions.errors import PartitionInTransitError
from ponor_broker.partitions.handoff.transit_parking import ParkedRequest, TransitParking


class TransitWait:
    """Of one fetch. `is_over`: a partition has settled, or its time is over."""

    __slots__ = ("_news", "_places", "is_over")

    def __init__(self) -> None:
        self._news: News | None = None
        self._places: list[ParkedRequest] = []
        self.is_over = False

    def take_places(self, parking: TransitParking, transits: Sequence[PartitionInTransitError]) -> bool:
        """Wait for all of these partitions; False, and for none, where one of them is waited for no more or there is no room."""
        for transit in transits:
            place = parking.park(transit.key, self._look_again)
            if place is None:
                self._leave()
                return False
            self._places.append(place)
        return True

    def beside(self, listen: Listen) -> Listen:
        """News from `listen`, and that the wait is over."""

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
