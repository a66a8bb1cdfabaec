"""The time at which each node was last heard, and the suspicion that follows from silence.

A suspected node keeps its rights. New partitions avoid it, and failover may fence it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId

LOOKS_PER_TIMEOUT = 4
EDGE_NS = 1_000_000
"""Added to waiting times, because a node is suspected only after the timeout has passed."""
TERM_TIMEOUTS: Final = 2
"""Number of session timeouts for which a new leader does not suspect nodes that it has not heard: in the
first a node detects that the former leader is silent, in the second it finds the new leader."""
RESTARTS_MAX: Final = 2
"""How often the timeout of a silent node restarts because another silent node was heard."""


class NodeActivity:
    """Tracks the silence of nodes in one term of leadership, in this process's observed time.

    A node is suspected after a session timeout of silence, or `reset_grace_ms` after its session broke: the
    session of a process that exits breaks, and a live process reconnects at once.

    Some silence does not indicate a failed node:

    - The time in which this process did not run. The clock excludes it (`ponor_runtime.observer_clock`).
      After an absence of half a session timeout or more, every node gets a full session timeout again,
      because the absence may have broken its session.
    - Silence in the first session timeouts of a term, in which nodes still search for the new leader.
    - Silence or broken sessions of more than half of the nodes at once. The fault is then probably at this
      controller. Broken sessions do not count, and silent nodes get a second session timeout. When one of the
      silent nodes is heard again, this controller's link was probably the cause, so every node gets a full
      session timeout again. A node that stays silent gets it at most `RESTARTS_MAX` times; otherwise one node
      that rarely sends messages could hide the failure of another node forever.

    Args:
        clock: observed time.
        session_timeout_ms: silence after which a node is suspected.
        reset_grace_ms: time to come back after a broken session.
    """

    def __init__(self, clock: Clock, session_timeout_ms: int, reset_grace_ms: int = 1_000) -> None:
        self._clock = clock
        self._timeout_ns = session_timeout_ms * 1_000_000
        self._noticed_ns = self._timeout_ns // 2
        """A node counts as silent this long before it is suspected. A live node sends a frame every third of
        the timeout.
        """
        self._window_ns = self._timeout_ns + self._noticed_ns
        """Maximum length of the second timeout. Nodes that became silent together are suspected together;
        otherwise failover could assign partitions of the first one to another silent node."""
        self._grace_ns = min(reset_grace_ms, session_timeout_ms) * 1_000_000
        self._started_ns = clock.monotonic_ns()
        self._grace_until_ns = self._started_ns + TERM_TIMEOUTS * self._timeout_ns
        self._heard_ns: dict[NodeId, int] = {}
        self._due_ns: dict[NodeId, int] = {}
        """When each expected node becomes suspected; `_grace_until_ns` for other nodes."""
        self._left_ns: dict[NodeId, int] = {}
        self._restarts: dict[NodeId, int] = {}
        """How often the timeout of a silent node was restarted since the node was last heard."""
        self._registering: Counter[NodeId] = Counter()
        self._listeners: list[Callable[[], None]] = []
        self._most_silent: tuple[int, bool] | None = None
        """The last result of `_most_fell_silent` and its millisecond, because it is called for each silent
        node.
        """
        self.suspected_count = 0
        """Suspected brokers at the last check of `watch`."""

    def restart(self, expected: Iterable[NodeId] = ()) -> None:
        """Begin a term: discard the state of the last one.

        Args:
            expected: nodes that are not fenced and should therefore connect to this leader.
        """
        self._heard_ns.clear()
        self._left_ns.clear()
        self._restarts.clear()
        self._started_ns = self._clock.monotonic_ns()
        self._grace_until_ns = self._started_ns + TERM_TIMEOUTS * self._timeout_ns
        self._due_ns = dict.fromkeys(expected, self._grace_until_ns)
        self._most_silent = None

    def observer_was_absent(self, absent_ns: int) -> None:
        """This process did not run for `absent_ns`. Observed time does not include this time."""
        if 2 * absent_ns >= self._timeout_ns:
            self._restarts.clear()
            self._start_clocks_again()

    def heard(self, node_id: NodeId) -> None:
        """A frame of the node arrived."""
        now_ns = self._clock.monotonic_ns()
        was_due_ns = self._due_ns.get(node_id, self._grace_until_ns)
        if now_ns > was_due_ns - self._noticed_ns and self._most_silent_since(now_ns) is not None:
            self._extend_silent_nodes(node_id, now_ns)
        self._heard_ns[node_id] = now_ns
        self._due_ns[node_id] = now_ns + self._timeout_ns
        if self._restarts:
            self._restarts.pop(node_id, None)
        if self._left_ns:
            self._left_ns.pop(node_id, None)

    def left(self, node_id: NodeId) -> None:
        """The node's only session broke. Not called if this controller ended the session because of
        silence.
        """
        self._left_ns[node_id] = self._clock.monotonic_ns()
        self._most_silent = None
        for listener in self._listeners:
            listener()

    @contextmanager
    def registering(self, node_id: NodeId) -> Iterator[None]:
        """Use this while a process of the node registers. A registration in several batches fences the node
        in the meantime.
        """
        self._registering[node_id] += 1
        try:
            yield
        finally:
            self._registering[node_id] -= 1
            if not self._registering[node_id]:
                del self._registering[node_id]

    def is_registering(self, node_id: NodeId) -> bool:
        """Whether a process of the node registers, so that failover does not replace the node."""
        return node_id in self._registering

    def ignore(self, node_id: NodeId) -> None:
        """The node is fenced: if it is silent, do not count it when deciding whether most nodes are
        silent.
        """
        if node_id in self._left_ns or self._clock.monotonic_ns() > self._due_ns.get(node_id, 0):
            self._left_ns.pop(node_id, None)
            self._heard_ns.pop(node_id, None)
            self._due_ns.pop(node_id, None)
            self._restarts.pop(node_id, None)
            self._most_silent = None

    def on_left(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every broken session, because it may make `suspected_in_s` shorter."""
        self._listeners.append(listener)

    def grace_left_s(self) -> float:
        """Seconds in which nodes that were not heard in this term, or since an absence of this process, are
        not suspected yet.
        """
        return max(0, self._grace_until_ns - self._clock.monotonic_ns()) / 1e9

    def suspected_in_s(self, node_id: NodeId) -> float | None:
        """Seconds until a silent node is suspected at the earliest; None if it is suspected."""
        if self.is_suspected(node_id):
            return None
        now_ns = self._clock.monotonic_ns()
        at_ns = self._due_ns.get(node_id, self._grace_until_ns)
        if (
            now_ns > at_ns
        ):  # most nodes are silent: check again soon, because other nodes may be heard again or be suspected
            at_ns = min(at_ns + self._timeout_ns, now_ns + self._timeout_ns // LOOKS_PER_TIMEOUT)
        left_ns = self._left_ns.get(node_id)
        if left_ns is not None:
            by_reset_ns = max(left_ns + self._grace_ns, self._grace_until_ns)
            if by_reset_ns >= now_ns:  # else too many sessions broke at once, so they do not count
                at_ns = min(at_ns, by_reset_ns)
        return (max(0, at_ns - now_ns) + EDGE_NS) / 1e9

    def is_away(self, node_id: NodeId) -> bool:
        """Whether the node's session broke and the node has no other session."""
        return node_id in self._left_ns

    def heard_ms_ago(self, node_id: NodeId) -> int | None:
        """How long ago the node was heard; None if not in this term."""
        heard_ns = self._heard_ns.get(node_id)
        return None if heard_ns is None else (self._clock.monotonic_ns() - heard_ns) // 1_000_000

    def reason(self, node_id: NodeId) -> str:
        """Why the node is suspected, for logs."""
        now_ns = self._clock.monotonic_ns()
        left_ns = self._left_ns.get(node_id)
        if left_ns is not None and not self._is_silent(node_id, now_ns):
            return f"its session broke {(now_ns - left_ns) // 1_000_000} ms ago, and it has not reconnected"
        heard_ns = self._heard_ns.get(node_id)
        if heard_ns is None:
            return (
                f"it has been silent for {(now_ns - self._started_ns) // 1_000_000} ms, since this controller"
                " became leader"
            )
        return f"it has been silent for {(now_ns - heard_ns) // 1_000_000} ms"

    def is_suspected(self, node_id: NodeId) -> bool:
        """Whether the node has probably failed, according to the rules above."""
        now_ns = self._clock.monotonic_ns()
        if self._is_silent(node_id, now_ns):
            return True
        if node_id not in self._left_ns or now_ns <= self._grace_until_ns:
            return False
        return now_ns - self._left_ns[node_id] > self._grace_ns and not self._most_lost_sessions(now_ns)

    async def watch(self, image: MetadataImage) -> None:
        """Count suspected brokers until cancelled."""
        while True:
            self.suspected_count = sum(
                row.role is NodeRole.BROKER and not row.fenced and self.is_suspected(row.node_id)
                for row in image[NODES]
            )
            await self._clock.sleep(self._timeout_ns / LOOKS_PER_TIMEOUT / 1e9)

    def _is_silent(self, node_id: NodeId, now_ns: int) -> bool:
        over_ns = now_ns - self._due_ns.get(node_id, self._grace_until_ns)
        if over_ns <= 0:
            return False
        return over_ns > self._window_ns or self._broke(node_id) or not self._most_fell_silent(now_ns)

    def _extend_silent_nodes(self, heard_id: NodeId, now_ns: int) -> None:
        """A node was heard while most nodes were silent: restart the timeouts, unless no silent node has
        restarts left.
        """
        silent = [
            node_id
            for node_id, due_ns in self._due_ns.items()
            if node_id != heard_id and now_ns > due_ns - self._noticed_ns
        ]
        if any(self._restarts.get(node_id, 0) < RESTARTS_MAX for node_id in silent):
            self._start_clocks_again()
            for node_id in silent:
                self._restarts[node_id] = self._restarts.get(node_id, 0) + 1

    def _start_clocks_again(self) -> None:
        """Give every node with restarts left a full session timeout, and clear the broken sessions."""
        due_ns = self._clock.monotonic_ns() + self._timeout_ns
        for node_id, before_ns in self._due_ns.items():
            if self._restarts.get(node_id, 0) < RESTARTS_MAX:
                self._due_ns[node_id] = max(before_ns, due_ns)
        self._grace_until_ns = max(self._grace_until_ns, due_ns)
        self._left_ns.clear()
        self._most_silent = None

    def _most_fell_silent(self, now_ns: int) -> bool:
        """Whether most nodes are silent and their second session timeout is not over."""
        now_ms = now_ns // 1_000_000
        if self._most_silent is None or self._most_silent[0] != now_ms:
            since_ns = self._most_silent_since(now_ns, self._window_ns)
            in_doubt = since_ns is not None and now_ns <= since_ns + self._timeout_ns
            self._most_silent = (now_ms, in_doubt)
        return self._most_silent[1]

    def _most_silent_since(self, now_ns: int, window_ns: int | None = None) -> int | None:
        """Return when the session timeout of the last silent node ends, if most nodes (at least two) are
        silent; otherwise None.

        Nodes whose session broke do not count as silent.

        Args:
            now_ns: observed time.
            window_ns: nodes whose session timeout ended longer ago than this do not count.
        """
        silent = present = last_ns = 0
        for node_id, due_ns in self._due_ns.items():
            if window_ns is None or now_ns <= due_ns + window_ns:
                present += 1
                if now_ns > due_ns - self._noticed_ns and not self._broke(node_id):
                    silent += 1
                    last_ns = max(last_ns, due_ns)
        return last_ns if silent >= 2 and 2 * silent > present else None

    def _broke(self, node_id: NodeId) -> bool:
        """Whether the session broke before the timeout, so that packets of the node or its host still arrived
        here.
        """
        left_ns = self._left_ns.get(node_id)
        return left_ns is not None and left_ns < self._due_ns.get(node_id, self._grace_until_ns)

    def _most_lost_sessions(self, now_ns: int) -> bool:
        """Whether more than half of the nodes that were heard within a session timeout lost their
        sessions.
        """
        present = [node_id for node_id in self._heard_ns if not self._is_silent(node_id, now_ns)]
        left = sum(node_id in self._left_ns for node_id in present)
        return 2 * left > len(present)
