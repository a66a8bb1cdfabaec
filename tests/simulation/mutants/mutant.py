"""A planted bug: which code it replaces, and which test must catch it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from types import ModuleType
from typing import Any

import pytest


class Suite(Enum):
    """The simulation that replays the recorded seeds of its mutants."""

    SWARM = "test_planted_bugs.py"
    RAFT = "test_raft_core.py"
    CLUSTER = "test_cluster_crashes.py"
    STORAGE = "test_storage_crashes.py"
    JOURNAL = "test_journal_crashes.py"
    CONTROLLER_LOG = "test_controller_log_crashes.py"


@dataclass(frozen=True, slots=True)
class Patch:
    """One replacement: an attribute of a class or module, or an entry of a dictionary."""

    owner: Any
    name: Any
    value: object
    is_item: bool = False

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Make the replacement; `patch` takes it back.

        Raises:
            AttributeError, KeyError: the owner has no such attribute or entry.
        """
        if self.is_item:
            assert self.name in self.owner, f"there is no entry {self.name!r}"
            patch.setitem(self.owner, self.name, self.value)
        else:
            patch.setattr(self.owner, self.name, self.value)


Patches = tuple[Patch, ...]


@dataclass(frozen=True, slots=True)
class Catch:
    """A recorded seed of a suite, and a pattern that its failure matches."""

    suite: Suite
    message: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A row of the table.

    Attributes:
        bug: what the planted bug does.
        patches: the replacements; a function that makes them where a mutant keeps state.
        catches: which suites catch it. A mutant without any is caught by a test that names it.
    """

    name: str
    bug: str
    patches: Patches | Callable[[], Patches]
    catches: tuple[Catch, ...] = ()

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Apply all patches."""
        for each in self.patches() if callable(self.patches) else self.patches:
            each.apply(patch)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Apply all patches within the block."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield


def method(original: Callable[..., object], replacement: object) -> Patch:
    """Replace a method, found by its qualified name, so that mypy checks the reference."""
    *path, name = original.__qualname__.split(".")
    return Patch(reduce(getattr, path, sys.modules[original.__module__]), name, replacement)


def used_in(name: str, replacement: object, *modules: ModuleType) -> Patches:
    """Replace a function where modules have imported it."""
    return tuple(Patch(module, name, replacement) for module in modules)
