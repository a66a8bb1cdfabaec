"""How many clients are connected, in all and from each address.

What lives here: counting against two bounds, Kafka's `max.connections` and `max.connections.per.ip`. Memory is one number per address that is
connected, so it is bounded by the connections themselves.
"""

from __future__ import annotations


class ConnectionCounts:
    """Counts of one listener."""

    def __init__(self, *, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_address: dict[str, int] = {}
        self.total = 0

    def refusal(self, address: str) -> str | None:
        """The name of the bound that one more connection of this address would break, None if there is room."""
        if self.total >= self._connections_max:
            return "connections_max"
        if self._by_address.get(address, 0) >= self._per_address_max:
            return "connections_per_address_max"
        return None

    def add(self, address: str) -> None:
        """One more."""
        assert self.refusal(address) is None, f"{address} was let in above a bound"
        self.total += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1

    def remove(self, address: str) -> None:
        """One less."""
        left = self._by_address[address] - 1
        assert left >= 0, f"{address} left more often than it came"
        self.total -= 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]
