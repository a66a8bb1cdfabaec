"""When each node was last heard.

What lives here: suspicion, and nothing that follows from it: a suspected node keeps all its rights. New partitions avoid it, and a metric counts it.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor_metadata.image import MetadataImage
from ponor_metadata.rows import NodeRole
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId

LOOKS_PER_TIMEOUT = 4
EDGE_NS = 1_000_000
"""Suspicion begins when a time is over, not when it is reached."""


class NodeActivity:
    """Silence of nodes by this process's clock, within one term of leadership.

    A node is suspected when it was silent for the session timeout, or already `reset_grace_ms` after its session broke, because a process that dies
    breaks its connections and one that lives comes back at once. A broken session says nothing in two situations: shortly after an election, when nobody
    had the time to find this controller; and when more than half of the nodes are gone at once, because then the fault is more likely here.
    """

    def __init__(self, clock: Clock, session_timeout_ms: int, reset_grace_ms: int = 1_000) -> None:
        self._clock = clock
        self._timeout_ns = session_timeout_ms * 1_000_000
        self._grace_ns = min(reset_grace_ms, session_timeout_ms) * 1_000_000
        self._started_ns = clock.monotonic_ns()
        self._heard_ns: dict[NodeId, int] = {}
        self._left_ns: dict[NodeId, int] = {}
        self._listeners: list[Callable[[], None]] = []
        self.suspected_count = 0
        """Suspected brokers when `watch` last looked."""

    def restart(self) -> None:
        """This controller begins to lead: what it heard in an earlier term says nothing, and every node has a full session timeout from now on."""
        self._heard_ns.clear()
        self._left_ns.clear()
        self._started_ns = self._clock.monotonic_ns()

    def heard(self, node_id: NodeId) -> None:
        """Any frame counts."""
        self._heard_ns[node_id] = self._clock.monotonic_ns()
        if self._left_ns:
            self._left_ns.pop(node_id, None)

    def left(self, node_id: NodeId) -> None:
        """The node's session broke, and it has no other."""
        self._left_ns[node_id] = self._clock.monotonic_ns()
        for listener in self._listeners:
            listener()

    def forget(self, node_id: NodeId) -> None:
        """The node is known to be gone: that it is silent says nothing about the others, or about this controller."""
        if node_id in self._left_ns:
            del self._left_ns[node_id]
            self._heard_ns.pop(node_id, None)

    def on_left(self, listener: Callable[[], None]) -> None:
        """Hear of every session that broke: `suspected_in_s` may have become shorter."""
        self._listeners.append(listener)

    def settled_in_s(self) -> float:
        """Time until every node had its full session timeout since this controller leads; 0 from then on."""
        over_ns = self._clock.monotonic_ns() - self._started_ns
        return max(0, self._timeout_ns - over_ns) / 1e9

    def suspected_in_s(self, node_id: NodeId) -> float | None:
        """Time until the node will be suspected at the earliest if nothing more is heard of it; None: it is already."""
        if self.is_suspected(node_id):
            return None
        now_ns = self._clock.monotonic_ns()
        at_ns = self._heard_ns.get(node_id, self._started_ns) + self._timeout_ns
        left_ns = self._left_ns.get(node_id)
        if left_ns is not None:
            by_reset_ns = max(left_ns + self._grace_ns, self._started_ns + self._timeout_ns)
            if by_reset_ns >= now_ns:  # else it is spared, because too many are gone at once
                at_ns = min(at_ns, by_reset_ns)
        return (max(0, at_ns - now_ns) + EDGE_NS) / 1e9

    def is_away(self, node_id: NodeId) -> bool:
        """Whether the node's session broke and it has no other."""
        return node_id in self._left_ns

    def heard_ms_ago(self, node_id: NodeId) -> int | None:
        """How long ago the node was heard; None: not since this controller leads."""
        heard_ns = self._heard_ns.get(node_id)
        return None if heard_ns is None else (self._clock.monotonic_ns() - heard_ns) // 1_000_000

    def reason(self, node_id: NodeId) -> str:
        """Why the node is suspected, for people."""
        now_ns = self._clock.monotonic_ns()
        left_ns = self._left_ns.get(node_id)
        if left_ns is not None and not self._is_silent(node_id, now_ns):
            return f"its session broke {(now_ns - left_ns) // 1_000_000} ms ago and it did not come back"
        heard_ns = self._heard_ns.get(node_id)
        if heard_ns is None:
            return f"nothing was heard of it in the {(now_ns - self._started_ns) // 1_000_000} ms since this controller leads"
        return f"it has been silent for {(now_ns - heard_ns) // 1_000_000} ms"

    def is_suspected(self, node_id: NodeId) -> bool:
        """Whether the node is probably not there."""
        now_ns = self._clock.monotonic_ns()
        if self._is_silent(node_id, now_ns):
            return True
        if node_id not in self._left_ns or now_ns - self._started_ns <= self._timeout_ns:
            return False
        return now_ns - self._left_ns[node_id] > self._grace_ns and not self._distrusts_itself(now_ns)

    async def watch(self, image: MetadataImage) -> None:
        """Count suspected brokers, for ever."""
        while True:
            self.suspected_count = sum(
                row.role is NodeRole.BROKER and not row.fenced and self.is_suspected(row.node_id)
                for row in image.nodes
            )
            await self._clock.sleep(self._timeout_ns / LOOKS_PER_TIMEOUT / 1e9)

    def _is_silent(self, node_id: NodeId, now_ns: int) -> bool:
        return now_ns - self._heard_ns.get(node_id, self._started_ns) > self._timeout_ns

    def _distrusts_itself(self, now_ns: int) -> bool:
        """Whether more than half of the nodes that were there a session timeout ago have gone since."""
        there = [node_id for node_id in self._heard_ns if not self._is_silent(node_id, now_ns)]
        gone = sum(node_id in self._left_ns for node_id in there)
        return 2 * gone > len(there)
