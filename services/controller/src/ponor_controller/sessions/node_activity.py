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
    """Silence of nodes by this process's clock. Nodes that were never heard count from the start of the process."""

    def __init__(self, clock: Clock, session_timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ns = session_timeout_ms * 1_000_000
        self._started_ns = clock.monotonic_ns()
        self._heard_ns: dict[NodeId, int] = {}
        self.suspected_count = 0
        """Suspected brokers when `watch` last looked."""

    def heard(self, node_id: NodeId) -> None:
        """Any frame counts."""
        self._heard_ns[node_id] = self._clock.monotonic_ns()

    def is_suspected(self, node_id: NodeId) -> bool:
        """Whether the node has been silent for longer than the session timeout."""
        last_ns = self._heard_ns.get(node_id, self._started_ns)
        return self._clock.monotonic_ns() - last_ns > self._timeout_ns

    async def watch(self, image: MetadataImage) -> None:
        """Count suspected brokers, for ever."""
        while True:
            self.suspected_count = sum(
                row.role is NodeRole.BROKER and self.is_suspected(row.node_id) for row in image.nodes
            )
            await self._clock.sleep(self._timeout_ns / LOOKS_PER_TIMEOUT / 1e9)
