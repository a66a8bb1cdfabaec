"""What a story is: a function that tells a broker something and hears the answers, with a name and one sentence.

Stories are written once and told to Kafka (for the recording) and to Ponor (for the comparison); they may use what was answered (ids, epochs), and
must ask the same whatever that was.
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
    """`name` is the recording's file name; `title` says what Kafka is asked."""

    name: str
    title: str
    tell: Tell


def story(title: str) -> Callable[[Tell], Story]:
    """Make a story of a function; its name is the function's."""

    def make(tell: Tell) -> Story:
        return Story(tell.__name__, title, tell)

    return make


def all_stories() -> list[Story]:
    """Every story of tests/oracle/stories, in the order of their files."""
    found = list(_find())
    names = [each.name for each in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two stories have one name: {sorted(twice)}"
    return found


def _find() -> Iterator[Story]:
    for path in sorted((Path(__file__).parent / "stories").glob("*.py")):
        module = import_module(f"tests.oracle.stories.{path.stem}")
        yield from (value for value in vars(module).values() if isinstance(value, Story))
