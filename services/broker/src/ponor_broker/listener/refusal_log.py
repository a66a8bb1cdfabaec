"""Log lines about refused clients, with a bound per period.

`ponor_kafka_connections_refused_total` counts all refusals.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("ponor.broker.listener")
LINES_PER_PERIOD_MAX: Final = 50


class RefusalLog:
    """Logs a bounded number of lines per period, then their count. The owner starts periods."""

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
            LOG.warning("closed %d more connections; their lines were omitted", left_out)
