"""Writer of generated Python source: indentation, unique names, and the objects that the source uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct as PackedRun


class SourceWriter:
    """The body of one generated function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, object] = {}
        self._depth = 1
        self._names = 0
        self._runs: dict[tuple[str, str], str] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent everything written inside the block under `head`."""
        self.line(head)
        self._depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def run(self, formats: str, method: str) -> tuple[str, int]:
        """Return the name of `Struct(formats).method` in the namespace, and the run's width in bytes."""
        packed = PackedRun(">" + formats)
        name = self._runs.get((formats, method))
        if name is None:
            name = self.fresh("run_")
            self._runs[formats, method] = name
            self.namespace[name] = getattr(packed, method)
        return name, packed.size
