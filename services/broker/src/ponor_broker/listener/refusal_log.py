"""Lines about refused clients, so few that a hostile crowd cannot fill a disk with them.

What lives here: the bound on lines. How often what was refused is in the metric `ponor_kafka_connections_refused_total`, without a bound.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("ponor.broker.listener")
LINES_PER_PERIOD_MAX: Final = 50


class RefusalLog:
    """A number of lines per period, then a count; the owner begins periods."""

    def __init__(self) -> None:
        self._lines = 0

    def say(self, peer: str, reason: str, text: str) -> None:
        """One client is refused."""
        self._lines += 1
        if self._lines <= LINES_PER_PERIOD_MAX:
            LOG.warning("closing connection of %s (%s): %s", peer, reason, text)

    def begin_period(self) -> None:
        """Say how many lines were left out, and begin anew."""
        left_out = self._lines - LINES_PER_PERIOD_MAX
        self._lines = 0
        if left_out > 0:
            LOG.warning("closed %d more connections without a line each", left_out)
