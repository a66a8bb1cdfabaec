"""Fetches that wait for partitions in transit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponor_broker.handlers.fetch.fetch_parking import Listen
from ponor_broker.handlers.fetch.fetch_session import News
from ponor_broker.partitions.errors import PartitionInTransitError
from ponor_broker.partitions.handoff.transit_parking import ParkedRequest, TransitParking


class TransitWait:
    """The places of one fetch in `partitions.handoff.transit_parking`. `is_over`: a partition
    serves again, or the wait has ended.
    """

    __slots__ = ("_news", "_places", "is_over")

    def __init__(self) -> None:
        self._news: News | None = None
        self._places: list[ParkedRequest] = []
        self.is_over = False

    def take_places(self, parking: TransitParking, transits: Sequence[PartitionInTransitError]) -> bool:
        """Wait for all of these partitions; return False, and wait for none, if one of them is not
        waited for any more or there is no room.
        """
        for transit in transits:
            place = parking.park(transit.key, self._look_again)
            if place is None:
                self._leave()
                return False
            self._places.append(place)
        return True

    def beside(self, listen: Listen) -> Listen:
        """Combine the news from `listen` with the end of this wait."""

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
