"""Counts of connected clients, in total and per address."""

from __future__ import annotations


class ConnectionCounts:
    """Counts of one listener against Kafka's `max.connections` and `max.connections.per.ip`.

    Memory is one number per connected address, so the connections bound it.
    """

    def __init__(self, *, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_address: dict[str, int] = {}
        self.total = 0

    def refusal(self, address: str) -> str | None:
        """Return the name of the bound that one more connection of this address would exceed; None
        if there is room.
        """
        if self.total >= self._connections_max:
            return "connections_max"
        if self._by_address.get(address, 0) >= self._per_address_max:
            return "connections_per_address_max"
        return None

    def add(self, address: str) -> None:
        """Count a new connection."""
        assert self.refusal(address) is None, f"{address} was accepted above a bound"
        self.total += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1

    def remove(self, address: str) -> None:
        """Count a closed connection."""
        left = self._by_address[address] - 1
        assert left >= 0, f"{address} closed more connections than it opened"
        self.total -= 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]
