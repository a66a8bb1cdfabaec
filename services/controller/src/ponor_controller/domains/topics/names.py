"""Kafka's rules for topic names (org.apache.kafka.common.internals.Topic).

What lives here: legal characters and lengths, and the collision of `.` and `_`, which are the same character in metric names.
"""

from __future__ import annotations

import re

NAME_LENGTH_MAX = 249
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Why a name cannot be a topic's, in Kafka's words; None when it can."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if LEGAL_NAME.fullmatch(name) is None:
        return f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def has_collision_characters(name: str) -> bool:
    """Whether the name could collide with another one."""
    return "." in name or "_" in name


def collides(name: str, other: str) -> bool:
    """Whether two names are one in metric names."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")
