"""When each node was last heard.

What lives here: suspicion, and nothing that follows from it: a suspected node keeps all its rights. New partitions avoid it, and a metric counts it.
"""

from __future__ import annotations

from ponor_metadata.image import MetadataImage
from ponor_metadata.rows import NodeRole
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId

LOOKS_PER_TIMEOUT = 4


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
                row.role is NodeRole.BROKER and self.is_suspected(row.node_id) for row in image.nodes
            )
            await self._clock.sleep(self._timeout_ns / LOOKS_PER_TIMEOUT / 1e9)

    def _is_silent(self, node_id: NodeId, now_ns: int) -> bool:
        return now_ns - self._heard_ns.get(node_id, self._started_ns) > self._timeout_ns

    def _distrusts_itself(self, now_ns: int) -> bool:
        """Whether more than half of the nodes that were there a session timeout ago have gone since."""
        there = [node_id for node_id in self._heard_ns if not self._is_silent(node_id, now_ns)]
        gone = sum(node_id in self._left_ns for node_id in there)
        return 2 * gone > len(there)
