"""Kafka's rules for topic names (org.apache.kafka.common.internals.Topic).

What lives here: legal characters and lengths, and the collision of `.` and `_`, which are the same character in metric names.
"""

from __future__ import annotations

import re

NAME_LENGTH_MAX = 249
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Why a name cannot be a topic's; None when it can."""
    if not name:
        return "a topic's name cannot be empty"
    if name in (".", ".."):
        return f"a topic's name cannot be {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic's name has at most {NAME_LENGTH_MAX} characters, {name[:20]!r}... has {len(name)}"
    if LEGAL_NAME.fullmatch(name) is None:
        return f"topic name {name!r} has characters other than ASCII letters and digits, '.', '_' and '-'"
    return None


def has_collision_characters(name: str) -> bool:
    """Whether the name could collide with another one."""
    return "." in name or "_" in name


def collides(name: str, other: str) -> bool:
    """Whether two names are one in metric names."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")
