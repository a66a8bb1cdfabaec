"""The compose file as plain values: what each container runs, and its environment.

Reads the file with variables at their defaults; needs no container engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

COMPOSE: Final = Path(__file__).parents[2] / "deploy" / "compose" / "compose.yaml"
_VARIABLE: Final = re.compile(r"\$\{(\w+):-([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Container:
    """One service of the file."""

    name: str
    spec: dict[str, Any]

    @property
    def command(self) -> list[str]:
        """Arguments of the image's entrypoint."""
        return [str(word) for word in self.spec["command"]]

    @property
    def environment(self) -> dict[str, str]:
        """The environment with the host name, which Docker sets."""
        variables = {name: str(value) for name, value in self.spec.get("environment", {}).items()}
        return {"PONOR_POD": self.spec["hostname"], **variables}


def read_composition() -> dict[str, Any]:
    """The whole file, with resolved anchors and default variables."""
    text = _VARIABLE.sub(lambda match: match[2], COMPOSE.read_text())
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def containers(role: str | None = None) -> list[Container]:
    """All services, or those of one of our roles."""
    found = [Container(name, spec) for name, spec in read_composition()["services"].items()]
    return [each for each in found if role is None or each.command == [role]]
