"""The port through which somebody else decides how fast a compaction may go."""

from __future__ import annotations

from typing import Protocol


class Throttle(Protocol):
    """Asked before every call to the store; may take its time. A server-side copy is a write of no bytes."""

    async def before_read(self, size_bytes: int) -> None:
        """One call that reads so many bytes may be made when this returns."""
        ...

    async def before_write(self, size_bytes: int) -> None:
        """One call that writes so many bytes may be made when this returns."""
        ...


class Unthrottled:
    """`Throttle` that lets everything pass: where nobody else uses the store."""

    async def before_read(self, size_bytes: int) -> None:
        """Go on."""

    async def before_write(self, size_bytes: int) -> None:
        """Go on."""
