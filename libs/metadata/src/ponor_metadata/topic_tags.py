"""How streams and keys name the topic that they belong to: by its id in lower-case hexadecimal."""

from __future__ import annotations

from typing import Final

TOPIC_HEX_CHARACTERS: Final = 32


def parse_topic_id(named: str) -> bytes | None:
    """The topic id that a tag or a part of a key names; None if it names none."""
    if len(named) != TOPIC_HEX_CHARACTERS:
        return None
    try:
        topic_id = bytes.fromhex(named)
    except ValueError:
        return None
    return topic_id if topic_id.hex() == named else None
