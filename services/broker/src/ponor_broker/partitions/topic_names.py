"""Kafka's rule for topic names (org.apache.kafka.common.internals.Topic).

What lives here: the check that Metadata makes before it asks the controller for a topic; the controller checks again, and for collisions.
"""

from __future__ import annotations

import re
from typing import Final

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_valid_name(name: str) -> bool:
    """Whether a topic may have this name."""
    return name not in {".", ".."} and _LEGAL.fullmatch(name) is not None
