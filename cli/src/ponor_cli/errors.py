"""How a command fails: one line that names the thing and the remedy."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot be carried out; the message is all that the user sees."""
