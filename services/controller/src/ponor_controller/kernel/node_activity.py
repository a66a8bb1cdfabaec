"""When each node was last heard, and which nodes are suspected.

A suspected node keeps all its rights. New partitions avoid it, failover may fence it, and a metric counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId

LOOKS_PER_TIMEOUT = 4
EDGE_NS = 1_000_000
"""Suspicion begins when a time is over, not when it is reached."""
TERM_TIMEOUTS: Final = 2
"""Session timeouts that a new leader gives to nodes it has not heard: one in which a node notices that the old leader is silent, one in which it finds the new leader."""
RESTARTS_MAX: Final = 2
"""How often the clock of a node that is not heard starts again because another silent node was heard."""


class NodeActivity:
    """Silence of nodes by this process's observed time, within one term of leadership.

    A node is suspected when it was silent for the session timeout, or already `reset_grace_ms` after its session broke, because a process that dies
    breaks its connections and one that lives comes back at once.

    Some silence says nothing about a node:

    - The time in which this process did not run. The clock leaves it out (`ponor_runtime.observer_clock`); after an absence of half a session timeout or more, sessions may
      have broken because of it, and every node has a full session timeout again.
    - The first session timeouts of a term: nodes still look for the new leader.
    - More than half of the nodes are silent, or lose their sessions, at once. The fault is then more likely here. Broken sessions do not count then.
      Silent nodes have a second session timeout. When one of them is heard again, the link of this controller was probably the cause, and every node has a full session timeout
      again. A node that stays silent gets that `RESTARTS_MAX` times: a node that is heard too rarely must not hide for ever that another one is dead.

    Args:
        clock: observed time.
        session_timeout_ms: silence after which a node is suspected.
        reset_grace_ms: time to come back after a broken session.
    """

    def __init__(self, clock: Clock, session_timeout_ms: int, reset_grace_ms: int = 1_000) -> None:
        self._clock = clock
        self._timeout_ns = session_timeout_ms * 1_000_000
        self._noticed_ns = self._timeout_ns // 2
        """Before its silence is suspicious a node counts as silent already: a living one sends something every third of the timeout."""
        self._window_ns = self._timeout_ns + self._noticed_ns
        """Longest second timeout: nodes that fell silent together are given up together, so that none of them takes over what the first one led."""
        self._grace_ns = min(reset_grace_ms, session_timeout_ms) * 1_000_000
        self._started_ns = clock.monotonic_ns()
        self._settled_ns = self._started_ns + TERM_TIMEOUTS * self._timeout_ns
        self._heard_ns: dict[NodeId, int] = {}
        self._due_ns: dict[NodeId, int] = {}
        """When the silence of each expected node becomes suspicious; `_settled_ns` for nodes that are not here."""
        self._left_ns: dict[NodeId, int] = {}
        self._restarts: dict[NodeId, int] = {}
        """How often the clock of a silent node started again since it was heard."""
        self._listeners: list[Callable[[], None]] = []
        self._most_silent: tuple[int, bool] | None = None
        """The last answer of `_most_fell_silent`, and the millisecond that it was for: it is asked for each silent node."""
        self.suspected_count = 0
        """Suspected brokers when `watch` last looked."""

    def restart(self, expected: Iterable[NodeId] = ()) -> None:
        """Begin a term: forget what was heard in an earlier one.

        Args:
            expected: nodes that have rights, and so should find this leader.
        """
        self._heard_ns.clear()
        self._left_ns.clear()
        self._restarts.clear()
        self._started_ns = self._clock.monotonic_ns()
        self._settled_ns = self._started_ns + TERM_TIMEOUTS * self._timeout_ns
        self._due_ns = dict.fromkeys(expected, self._settled_ns)
        self._most_silent = None

    def observer_was_absent(self, absent_ns: int) -> None:
        """This process did not run for `absent_ns`, which observed time leaves out."""
        if 2 * absent_ns >= self._timeout_ns:
            self._restarts.clear()
            self._start_clocks_again()

    def heard(self, node_id: NodeId) -> None:
        """Any frame counts."""
        now_ns = self._clock.monotonic_ns()
        was_due_ns = self._due_ns.get(node_id, self._settled_ns)
        if now_ns > was_due_ns - self._noticed_ns and self._most_silent_since(now_ns) is not None:
            self._doubt_silence(node_id, now_ns)
        self._heard_ns[node_id] = now_ns
        self._due_ns[node_id] = now_ns + self._timeout_ns
        if self._restarts:
            self._restarts.pop(node_id, None)
        if self._left_ns:
            self._left_ns.pop(node_id, None)

    def left(self, node_id: NodeId) -> None:
        """The node's session broke, and it has no other. Not for a session that this controller ended because the node was silent."""
        self._left_ns[node_id] = self._clock.monotonic_ns()
        self._most_silent = None
        for listener in self._listeners:
            listener()

    def forget(self, node_id: NodeId) -> None:
        """The node is known to be gone: its silence says nothing about the others, or about this controller."""
        if node_id in self._left_ns or self._clock.monotonic_ns() > self._due_ns.get(node_id, 0):
            self._left_ns.pop(node_id, None)
            self._heard_ns.pop(node_id, None)
            self._due_ns.pop(node_id, None)
            self._restarts.pop(node_id, None)
            self._most_silent = None

    def on_left(self, listener: Callable[[], None]) -> None:
        """Hear of every session that broke: `suspected_in_s` may have become shorter."""
        self._listeners.append(listener)

    def settled_in_s(self) -> float:
        """Time until the silence of a node that was not heard in this term is suspicious, and that of every node after an absence of this process; 0 from then on."""
        return max(0, self._settled_ns - self._clock.monotonic_ns()) / 1e9

    def suspected_in_s(self, node_id: NodeId) -> float | None:
        """Time until the node will be suspected at the earliest if nothing more is heard of it; None: it is already."""
        if self.is_suspected(node_id):
            return None
        now_ns = self._clock.monotonic_ns()
        at_ns = self._due_ns.get(node_id, self._settled_ns)
        if now_ns > at_ns:  # most fell silent: look again soon, because others may come back or be given up
            at_ns = min(at_ns + self._timeout_ns, now_ns + self._timeout_ns // LOOKS_PER_TIMEOUT)
        left_ns = self._left_ns.get(node_id)
        if left_ns is not None:
            by_reset_ns = max(left_ns + self._grace_ns, self._settled_ns)
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
        if node_id not in self._left_ns or now_ns <= self._settled_ns:
            return False
        return now_ns - self._left_ns[node_id] > self._grace_ns and not self._most_left(now_ns)

    async def watch(self, image: MetadataImage) -> None:
        """Count suspected brokers, for ever."""
        while True:
            self.suspected_count = sum(
                row.role is NodeRole.BROKER and not row.fenced and self.is_suspected(row.node_id)
                for row in image[NODES]
            )
            await self._clock.sleep(self._timeout_ns / LOOKS_PER_TIMEOUT / 1e9)

    def _is_silent(self, node_id: NodeId, now_ns: int) -> bool:
        over_ns = now_ns - self._due_ns.get(node_id, self._settled_ns)
        if over_ns <= 0:
            return False
        return over_ns > self._window_ns or self._broke(node_id) or not self._most_fell_silent(now_ns)

    def _doubt_silence(self, heard_id: NodeId, now_ns: int) -> None:
        """One of most silent nodes was heard: start the clocks again, unless all others that are silent had that often enough."""
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
        """Give every node a full session timeout from now on, and forget which sessions broke; but not nodes that had that often enough."""
        due_ns = self._clock.monotonic_ns() + self._timeout_ns
        for node_id, before_ns in self._due_ns.items():
            if self._restarts.get(node_id, 0) < RESTARTS_MAX:
                self._due_ns[node_id] = max(before_ns, due_ns)
        self._settled_ns = max(self._settled_ns, due_ns)
        self._left_ns.clear()
        self._most_silent = None

    def _most_fell_silent(self, now_ns: int) -> bool:
        """Whether the silence of nodes is in doubt: most fell silent, and their second session timeout is not over."""
        now_ms = now_ns // 1_000_000
        if self._most_silent is None or self._most_silent[0] != now_ms:
            since_ns = self._most_silent_since(now_ns, self._window_ns)
            in_doubt = since_ns is not None and now_ns <= since_ns + self._timeout_ns
            self._most_silent = (now_ms, in_doubt)
        return self._most_silent[1]

    def _most_silent_since(self, now_ns: int, window_ns: int | None = None) -> int | None:
        """When the silence of the last of them becomes suspicious; None unless more than half of the nodes, and at least two, are silent although their sessions did not break.

        `window_ns`: nodes whose silence has been suspicious for longer do not count.
        """
        gone = there = last_ns = 0
        for node_id, due_ns in self._due_ns.items():
            if window_ns is None or now_ns <= due_ns + window_ns:
                there += 1
                if now_ns > due_ns - self._noticed_ns and not self._broke(node_id):
                    gone += 1
                    last_ns = max(last_ns, due_ns)
        return last_ns if gone >= 2 and 2 * gone > there else None

    def _broke(self, node_id: NodeId) -> bool:
        """Whether the node's session broke before its silence became suspicious: its packets, or those of its host, reached this controller."""
        left_ns = self._left_ns.get(node_id)
        return left_ns is not None and left_ns < self._due_ns.get(node_id, self._settled_ns)

    def _most_left(self, now_ns: int) -> bool:
        """Whether more than half of the nodes that were there a session timeout ago have gone since."""
        there = [node_id for node_id in self._heard_ns if not self._is_silent(node_id, now_ns)]
        gone = sum(node_id in self._left_ns for node_id in there)
        return 2 * gone > len(there)
