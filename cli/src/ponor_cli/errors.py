"""Errors that a command prints as one line: the message names the thing and the remedy."""

from __future__ import annotations


class CommandError(Exception):
    """The command failed. The user sees only the message."""


def absent_topic(name: str) -> CommandError:
    """Return the error for a topic that does not exist."""
    return CommandError(
        f"topic {name} does not exist; `ponor topic create {name}` creates it, `ponor topic list`"
        " lists the topics"
    )
