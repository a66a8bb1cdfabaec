"""How a command fails: one line that names the thing and the remedy."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot be carried out; the message is all that the user sees."""


def absent_topic(name: str) -> CommandError:
    """For a topic that the cluster does not have."""
    return CommandError(
        f"topic {name} does not exist; `ponor topic create {name}` creates it, `ponor topic list` lists the topics"
    )
