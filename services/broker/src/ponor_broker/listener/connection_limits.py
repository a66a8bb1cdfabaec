"""Limits of the listener: connected clients, in total and per address, and log lines about refused ones."""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("ponor.broker.listener")
LINES_PER_PERIOD_MAX: Final = 50


class RefusalLog:
    """Logs a bounded number of lines per period, and the number of omitted lines. The owner starts
    periods.
    """

    def __init__(self) -> None:
        self._lines = 0

    def say(self, peer: str, reason: str, text: str) -> None:
        """Log one refusal."""
        self._lines += 1
        if self._lines <= LINES_PER_PERIOD_MAX:
            LOG.warning("closing connection of %s (%s): %s", peer, reason, text)

    def begin_period(self) -> None:
        """Log how many lines were omitted, and start a new period."""
        left_out = self._lines - LINES_PER_PERIOD_MAX
        self._lines = 0
        if left_out > 0:
            LOG.warning("closed %d more connections without a log line", left_out)


class ConnectionCounts:
    """Counts one listener's connections, against Kafka's `max.connections` and `max.connections.per.ip`.

    It stores one number per connected address, so `max.connections` also bounds its memory.
    """

    def __init__(self, *, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_address: dict[str, int] = {}
        self.total = 0

    def refusal(self, address: str) -> str | None:
        """Return the name of the bound that another connection of this address would exceed; None if it would
        exceed none.
        """
        if self.total >= self._connections_max:
            return "connections_max"
        if self._by_address.get(address, 0) >= self._per_address_max:
            return "connections_per_address_max"
        return None

    def add(self, address: str) -> None:
        """Count a new connection."""
        assert self.refusal(address) is None, f"a connection of {address} was accepted above a limit"
        self.total += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1

    def remove(self, address: str) -> None:
        """Count a closed connection."""
        left = self._by_address[address] - 1
        assert left >= 0, f"more connections of {address} were closed than opened"
        self.total -= 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]
