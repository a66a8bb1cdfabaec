"""Where the controllers are, and which one to try next.

What lives here: addresses and their order. Neither client decides by itself whom it tries, so that both leave a dead controller in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

LEARNED_MAX: Final = 32
"""Addresses taken from the quorum's own record; a quorum has at most a handful of members."""
HINTS_IN_A_ROW_MAX: Final = 2
"""Hints that are followed at once. Two controllers that name each other must not keep a node running between them."""


class KnownControllers:
    """The addresses of one cluster's controllers, HOST:PORT each, shared by the clients of a process.

    The configured ones are always tried: they may be reachable under names that the quorum does not know. The learned ones follow the quorum, so
    that a process outlives the replacement of every controller it was configured with.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        assert configured, "a client needs the address of at least one controller"
        self._configured = tuple(dict.fromkeys(configured))
        self._all = self._configured

    @property
    def all(self) -> tuple[str, ...]:
        """Every address, the configured ones first; none twice."""
        return self._all

    def learn(self, addresses: Iterable[str]) -> None:
        """These are the quorum's addresses now; what was learned before is forgotten, unless nothing is said."""
        learned = [each for each in dict.fromkeys(addresses) if each and each not in self._configured]
        if learned:
            self._all = (*self._configured, *learned[:LEARNED_MAX])


class ControllerChoice:
    """Whom one client tries next: whoever was named as the leader, else one after the other."""

    def __init__(self, known: KnownControllers, first: int = 0) -> None:
        self._known = known
        self._position = first
        self._hint = ""
        self._hints_in_a_row = 0

    @property
    def has_others(self) -> bool:
        """Whether there is anybody else to try."""
        return len(self._known.all) > 1

    def address(self) -> str:
        """Whom to try now. The same until something is reported."""
        if self._hint:
            return self._hint
        return self._known.all[self._position % len(self._known.all)]

    def served(self) -> None:
        """The address serves; stay with it."""
        self._hints_in_a_row = 0

    def failed(self) -> None:
        """The address did not serve, or does no longer: the next one is another."""
        if self._hint:
            failed, self._hint = self._hint, ""
            if failed != self.address():
                return
        self._position += 1

    def redirected(self, leader_address: str) -> bool:
        """The address does not lead, and named who does (or nobody: empty).

        Returns:
            Whether the leader may be tried at once; else the caller backs off first.
        """
        tried = self.address()
        self.failed()
        if not leader_address or leader_address == tried:
            return False
        if self._hints_in_a_row == HINTS_IN_A_ROW_MAX:
            self._hints_in_a_row = 0
            return False
        self._hints_in_a_row += 1
        self._hint = leader_address
        return True
