"""Which fences of brokers are legal: the broker itself was paused, ended, cut off or hindered shortly before.

A broker that was not touched by any fault lived and spoke. If it is fenced, somebody took the absence of another process for its silence.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor_simulation.invariants.registry import Checks
from ponor_simulation.process import SimProcess


class Fences:
    """Looks at each fence of a broker when it is committed.

    Args:
        checks: counts looks.
        now_s: virtual time.
        horizon_s: for how long a fault of a broker may lead to its fence after it is over.
        struck_until_s: by the name of a process, until when a fault touches its links, disk, clock or store.
    """

    def __init__(
        self,
        checks: Checks,
        now_s: Callable[[], float],
        horizon_s: float,
        struck_until_s: Callable[[str], float],
    ) -> None:
        self._checks = checks
        self._now_s = now_s
        self._horizon_s = horizon_s
        self._struck_until_s = struck_until_s

    def fenced(self, broker: SimProcess) -> None:
        """A broker lost its rights.

        Raises:
            InvariantBrokenError: no fault touched it.
        """
        since_s = self._now_s() - self._horizon_s
        touched = (
            broker.paused
            or not broker.running
            or broker.changed_at_s >= since_s
            or self._struck_until_s(broker.name) >= since_s
        )
        self._checks.require(
            45, touched, f"{broker.name} is fenced, and nothing happened to it in {self._horizon_s:g} s"
        )
