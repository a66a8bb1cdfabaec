"""Recognition of requests that another broker has given up.

A broker opens a new connection to its peer after it has given up the previous one, for example because an
answer did not arrive in time. Requests on the previous connection may still arrive, or wait in a handler. The
client id of a connection contains the connection's number, so that the receiver can refuse such requests.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

SENDERS_MAX: Final = 10_000
"""Brokers whose newest connection is remembered."""
_CLIENT_ID: Final = re.compile(r"broker-(\d{1,10})/(\d{1,19})/(\d{1,19})")


def peer_client_id(node_id: int, node_epoch: int, number: int) -> str:
    """Return the client id of a broker's connection; `number` grows with each connection of the process."""
    return f"broker-{node_id}/{node_epoch}/{number}"


class ConnectionOrder:
    """The newest connection of each broker from which requests have arrived."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def admits(self, client_id: str | None) -> bool:
        """Note the client id of a request, and return whether the sender still uses the connection.

        Call it when the request arrives, and again directly before each of its effects, without an await in
        between. Requests of clients that are not brokers are always admitted.
        """
        parsed = None if client_id is None else _CLIENT_ID.fullmatch(client_id)
        if parsed is None:
            return True
        sender, connection = parsed[1], (int(parsed[2]), int(parsed[3]))
        if connection < self._newest.get(sender, connection):
            return False
        self._newest[sender] = connection
        self._newest.move_to_end(sender)
        if len(self._newest) > SENDERS_MAX:
            self._newest.popitem(last=False)
        return True
