"""Commands of other members: found by the entry point "ponor.commands", loaded when they are asked for.

What lives here: the one place where the `ponor` command takes something that it does not know. `libs/simulation` offers `simulate`; an installation without that member has no such command. What
is offered is a Typer application; nothing of it is imported for another command.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup

GROUP: Final = "ponor.commands"


class PluggedGroup(TyperGroup):
    """The commands of this member, and after them those of others. A name that is taken stays with this member."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in sorted(_offered()) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entry = _offered().get(cmd_name)
        return None if entry is None else typer.main.get_command(entry.load())


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
