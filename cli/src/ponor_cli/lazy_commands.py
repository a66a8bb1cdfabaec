"""Commands are loaded when they are asked for: those of this member by name, those of others by the entry point "ponor.commands".

What lives here: the one place where the `ponor` command takes something that it does not know. `libs/simulation` offers `simulate`; an installation without that member has no such command. What
is offered is a Typer application; nothing of it is imported for another command, so `ponor topic list` does not wait for what `ponor broker recover` needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup

GROUP: Final = "ponor.commands"
OWN: Final[Mapping[str, str]] = {
    "up": "ponor_cli.commands.up:up_app",
    "node": "ponor_cli.commands.node:node_app",
    "topic": "ponor_cli.commands.topic:topic_app",
    "partition": "ponor_cli.commands.partition:partition_app",
    "object": "ponor_cli.commands.object:object_app",
    "broker": "ponor_cli.commands.broker:broker_app",
    "cluster": "ponor_cli.commands.cluster:cluster_app",
    "doctor": "ponor_cli.commands.doctor:doctor_app",
}
"""MODULE:APPLICATION by name, in the order of the help."""
HELP_NAMES: Final[Mapping[str, Any]] = {"help_option_names": ["--help", "-h"]}


class PluggedGroup(TyperGroup):
    """The commands of this member, and after them those of others. A name that is taken stays with this member."""

    def get_params(self, ctx: Any) -> Any:
        """As Typer has them, but for the type behind flags."""
        parameters = super().get_params(ctx)
        bare_flags(parameters)
        return parameters

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the words are the same wherever they are asked for
        return [*OWN, *(name for name in sorted(_offered()) if name not in OWN)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as above
        if cmd_name in OWN:
            module, _, application = OWN[cmd_name].partition(":")
            return _named(cmd_name, getattr(import_module(module), application))
        entry = _offered().get(cmd_name)
        return None if entry is None else _named(cmd_name, entry.load())


def _named(name: str, application: typer.Typer) -> Any:
    command = typer.main.get_command(application)
    command.name = name
    _ease(command)
    return command


def _ease(command: Any) -> None:
    """Say in a command, and in all below it, that `-h` asks for help too and that a flag takes no value (Typer writes `<bool>` behind it)."""
    command.context_settings = {**HELP_NAMES, **command.context_settings}
    bare_flags(command.get_params(typer.Context(command, **command.context_settings)))
    for below in getattr(command, "commands", {}).values():
        _ease(below)


def bare_flags(parameters: Iterable[Any]) -> None:
    """Take the type away that is shown behind options that take no value."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
