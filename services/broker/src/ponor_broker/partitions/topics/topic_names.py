"""Kafka's rule for topic names (org.apache.kafka.common.internals.Topic), checked before the
controller does.
"""

from __future__ import annotations

import re
from typing import Final

LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_valid_name(name: str) -> bool:
    """Return whether a topic may have this name."""
    return name_problem(name) is None


def name_problem(name: str) -> str | None:
    """Return why the name is invalid, in Kafka's words; None if it is valid."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in {".", ".."}:
        problem = f"'{name}' is not allowed"
    elif len(name) > LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {problem}"
