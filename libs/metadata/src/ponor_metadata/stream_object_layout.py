"""How a row of the table of stream objects is packed, for the table and for the compiled code that works on it."""

from __future__ import annotations

from struct import Struct
from typing import Final

HOLDING: Final = Struct("<qqq")
"""Stream id, start offset, end offset."""
