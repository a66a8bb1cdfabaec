"""The root group of `ponor`: imports a command when it is called.

`ponor topic list` does not wait for the imports of `ponor broker recover`. Commands of other
members, such as `simulate`, are Typer applications behind the entry point `ponor.commands`; an
installation without the member lacks the command.
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
    "group": "ponor_cli.commands.group:group_app",
    "transaction": "ponor_cli.commands.transaction:transaction_app",
    "object": "ponor_cli.commands.object:object_app",
    "broker": "ponor_cli.commands.broker:broker_app",
    "cluster": "ponor_cli.commands.cluster:cluster_app",
    "certificates": "ponor_cli.commands.certificates:certificates_app",
    "doctor": "ponor_cli.commands.doctor:doctor_app",
}
"""MODULE:APPLICATION by name, in the order of the help."""
HELP_NAMES: Final[Mapping[str, Any]] = {"help_option_names": ["--help", "-h"]}


class LazyCommands(TyperGroup):
    """The commands of this member, then the commands of other members. If both define a name, the
    group uses this member's command.
    """

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters without the `<bool>` that help shows after flags."""
        parameters = super().get_params(ctx)
        bare_flags(parameters)
        return parameters

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        return [*OWN, *(name for name in sorted(_other_members()) if name not in OWN)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of click
        if cmd_name in OWN:
            module, _, application = OWN[cmd_name].partition(":")
            return _named(cmd_name, getattr(import_module(module), application))
        entry = _other_members().get(cmd_name)
        return None if entry is None else _named(cmd_name, entry.load())


def _named(name: str, application: typer.Typer) -> Any:
    command = typer.main.get_command(application)
    command.name = name
    _adapt(command)
    return command


def _adapt(command: Any) -> None:
    """Accept `-h`, and remove Typer's `<bool>` after flags, in a command and its subcommands."""
    command.help = join_lines(command.help)
    command.context_settings = {**HELP_NAMES, **command.context_settings}
    bare_flags(command.get_params(typer.Context(command, **command.context_settings)))
    for below in getattr(command, "commands", {}).values():
        _adapt(below)


def join_lines(text: str | None) -> str | None:
    r"""Join the lines of each paragraph, so that help is wrapped at the width of the terminal.

    Paragraphs that start with `\b` keep their lines, as in click.
    """
    if text is None:
        return None
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.splitlines()) for each in paragraphs)


def bare_flags(parameters: Iterable[Any]) -> None:
    """Remove the type that help shows after options without a value."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""


def _other_members() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
