"""A broker that cannot know whether its partitions are still its own stops serving them.

What lives here: the two clocks that say so. Staleness counts from a question that a controller answered, so that frames which waited somewhere do not end it;
silence is that of the leader's session, whose other end suspects this node after the same time. What a fenced broker refuses is the partitions' business.

Why: reads. What is produced to a broker that was replaced is safe without this: its write-ahead log in the store has a fence where the recovery ended, a put
behind that fails, and nothing is acknowledged. But it would answer reads from what it knows: an end of the log that is not the end any more. So it stops
at the time at which the controllers may begin to replace it, which is `session_timeout_ms` of silence. (They may do so earlier when its connection broke: then
reads can be stale until it comes back and is told, or until this time is over.)

An election is no reason to stop: it takes a second or two, less than that time, and the new leader gives every node a whole session timeout before it suspects
it. When no controller leads for longer, nobody can be replaced either; brokers with a log in the store stop nevertheless, because from where they stand
that looks the same as being cut off. With a log in a file nobody takes over, a fence would only make the controllers' absence the clients' problem: there it
is off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ponor_metadata.rows import WalKind
from ponor_runtime.clock import Clock

LOG: Final = logging.getLogger("ponor.broker")
LOOKS: Final = 20
"""Per `after_ms`: the fence falls at most a twentieth of it late."""


AUTOMATIC: Final = -1


def fence_after_ms(setting_ms: int, wal: WalKind, session_timeout_ms: int) -> int:
    """What the setting means for a broker with this kind of log; 0: no fence."""
    if setting_ms != AUTOMATIC:
        return setting_ms
    return session_timeout_ms if wal is WalKind.OBJECT else 0


class SelfFence:
    """Falls when the metadata is older than `after_ms`, or the leader was not heard for as long; lifts when both are current again."""

    def __init__(
        self,
        clock: Clock,
        after_ms: int,
        *,
        staleness_ms: Callable[[], int | None],
        silence_ms: Callable[[], int | None],
        changed: Callable[[bool], None],
    ) -> None:
        """`changed` is told whether the fence is down."""
        assert after_ms > 0
        self._clock = clock
        self._after_ms = after_ms
        self._staleness_ms = staleness_ms
        self._silence_ms = silence_ms
        self._changed = changed
        self._is_down = False

    @property
    def reason(self) -> str:
        """Why no partition is served; empty while they are."""
        return "the controllers may have replaced this broker: it has not heard them" if self._is_down else ""

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            self.look()
            await self._clock.sleep(self._after_ms / LOOKS / 1000)

    def look(self) -> None:
        """Compare the two clocks with the bound now."""
        staleness_ms, silence_ms = self._staleness_ms(), self._silence_ms()
        is_down = any(each is None or each > self._after_ms for each in (staleness_ms, silence_ms))
        if is_down == self._is_down:
            return
        self._is_down = is_down
        if is_down:
            LOG.warning(
                "no partition is served: metadata are %s ms old, the leading controller was silent for %s ms, %d ms are allowed",
                staleness_ms,
                silence_ms,
                self._after_ms,
            )
        else:
            LOG.info("metadata are current again; partitions are served")
        self._changed(is_down)
