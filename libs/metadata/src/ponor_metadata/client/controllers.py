"""Addresses of the controllers, the choice of the next address to try, and the delay before the attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ponor_runtime.randomness import Randomness

LEARNED_MAX: Final = 32
"""Limit of addresses learned from the quorum's members in the metadata. A quorum has only a few members."""
HINTS_IN_A_ROW_MAX: Final = 2
"""Leader hints that a client follows in a row without a delay. After that it waits and tries the next
address, because two controllers may each name the other as leader."""


class KnownControllers:
    """The addresses of one cluster's controllers, HOST:PORT each, shared by the clients of a process.

    Configured addresses are always kept, because the metadata may contain other names of the same hosts.
    Learned addresses follow the quorum, so that a process can connect even after all configured controllers
    were replaced.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        assert configured, "a client needs the address of at least one controller"
        self._configured = tuple(dict.fromkeys(configured))
        self._all = self._configured

    @property
    def all(self) -> tuple[str, ...]:
        """All addresses without duplicates, the configured ones first."""
        return self._all

    def learn(self, addresses: Iterable[str]) -> None:
        """Replace the learned addresses by those of the present members. An empty list changes nothing."""
        learned = [each for each in dict.fromkeys(addresses) if each and each not in self._configured]
        if learned:
            self._all = (*self._configured, *learned[:LEARNED_MAX])


class ControllerChoice:
    """The next address that a client tries: the leader that a controller named, otherwise each controller in
    turn.
    """

    def __init__(self, known: KnownControllers, first: int = 0) -> None:
        self._known = known
        self._position = first
        self._hint = ""
        self._hints_in_a_row = 0

    @property
    def has_others(self) -> bool:
        """Whether there is more than one address."""
        return len(self._known.all) > 1

    def address(self) -> str:
        """Return the address to try. Only `failed` and `redirected` change it."""
        if self._hint:
            return self._hint
        return self._known.all[self._position % len(self._known.all)]

    def served(self) -> None:
        """Report that the address serves."""
        self._hints_in_a_row = 0

    def failed(self) -> None:
        """Report that the address does not serve; choose the next one."""
        if self._hint:
            failed, self._hint = self._hint, ""
            if failed != self.address():
                return
        self._position += 1

    def redirected(self, leader_address: str) -> bool:
        """Report that the address does not lead. `leader_address`: the leader that it named (empty: none).

        Returns:
            Whether the caller may try the leader without a delay.
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


class ReconnectBackoff:
    """Random delays in [ms_min/2, bound). The bound doubles from `ms_min` up to `ms_max`, until `reset`."""

    def __init__(self, randomness: Randomness, *, ms_min: int, ms_max: int) -> None:
        assert 0 < ms_min <= ms_max
        self._randomness = randomness
        self._ms_min = ms_min
        self._ms_max = ms_max
        self._bound_ms = ms_min

    def next_seconds(self) -> float:
        """Return the next delay."""
        delay_ms = self._randomness.uniform(self._ms_min / 2, self._bound_ms)
        self._bound_ms = min(2 * self._bound_ms, self._ms_max)
        return delay_ms / 1000

    def reset(self) -> None:
        """Report a success: the next delay is short."""
        self._bound_ms = self._ms_min
