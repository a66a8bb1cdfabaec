"""A broker that cannot know whether its partitions are still its own stops serving them.

What lives here: the two clocks that say so. Staleness counts from a question that a controller answered, so that frames which waited somewhere do not end it;
silence is that of the leader's session, whose other end suspects this node after the same time. What a fenced broker refuses is the partitions' business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ponor_runtime.clock import Clock

LOG: Final = logging.getLogger("ponor.broker")
LOOKS: Final = 20
"""Per `after_ms`: the fence falls at most a twentieth of it late."""


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
