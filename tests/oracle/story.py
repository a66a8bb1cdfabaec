"""A story: a named function that sends requests to a broker and uses the answers.

Stories run on Kafka (for the recording) and on Ponor (for the comparison). They may use ids and
epochs of answers, but must always send the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.oracle.narrator import Narrator

Tell = Callable[[Narrator], None]


@dataclass(frozen=True, slots=True)
class Story:
    """`name` is the recording's file name; `title` describes the story."""

    name: str
    title: str
    tell: Tell


def story(title: str) -> Callable[[Tell], Story]:
    """Register a function as a story with the function's name."""

    def make(tell: Tell) -> Story:
        return Story(tell.__name__, title, tell)

    return make


def all_stories() -> list[Story]:
    """All stories in tests/oracle/stories, in file order."""
    found = list(_find())
    names = [each.name for each in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two stories have one name: {sorted(twice)}"
    return found


def _find() -> Iterator[Story]:
    for path in sorted((Path(__file__).parent / "stories").glob("*.py")):
        module = import_module(f"tests.oracle.stories.{path.stem}")
        yield from (value for value in vars(module).values() if isinstance(value, Story))
