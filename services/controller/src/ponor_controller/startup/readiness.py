"""Readiness of a controller: it is a voter, a leader is known, and its image is close to the leader's."""

from __future__ import annotations

from typing import Final

from ponor_raft.membership import ReplicaId
from ponor_runtime.health import Health

from ponor_controller.consensus.raft_driver import RaftDriver
from ponor_controller.kernel.leadership import ControllerLeadership

LEADERLESS_MS_MAX: Final = 2_000
"""Bound of the time since a leader was heard. An election takes a second or two, and a follower detects a
silent leader after an election timeout."""
LAG_BATCHES_MAX: Final = 1_000
"""Bound of the batches that a ready follower may lag. It applies this many in a fraction of a second; a
follower that lags further was absent or is too slow."""


class Readiness:
    """The readiness conditions of one controller."""

    def __init__(self, own: ReplicaId, driver: RaftDriver, leadership: ControllerLeadership) -> None:
        self._own = own
        self._driver = driver
        self._leadership = leadership

    def contribute(self, health: Health) -> None:
        """Add the conditions to the health checks of the process."""
        health.require("membership", self.membership)
        health.require("quorum", self.quorum)
        health.require("log", self.log)

    def membership(self) -> str:
        """Why this controller is not a voter; empty if it is."""
        membership = self._driver.membership
        if self._own in membership.voters:
            return ""
        place = "a learner" if self._own in membership.members else "not a member"
        return f"this controller is {place} of the quorum"

    def quorum(self) -> str:
        """Why nothing can be committed; empty if a leader was heard recently."""
        age_ms = self._leadership.commit_age_ms
        return f"no leader has been heard for {age_ms} ms" if age_ms > LEADERLESS_MS_MAX else ""

    def log(self) -> str:
        """Why the image is too old for subscribers; empty if it is not."""
        lag = self._driver.heard_commit_index - self._driver.applied_index
        return f"this controller is {lag} batches behind the leader" if lag > LAG_BATCHES_MAX else ""
