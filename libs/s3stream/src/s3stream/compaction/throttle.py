"""Port through which a process limits the rate of its compactions."""

from __future__ import annotations

from typing import Protocol


class Throttle(Protocol):
    """Called before every call to the store; may delay it. A server-side copy is a write of no bytes."""

    async def before_read(self, size_bytes: int) -> None:
        """Return when one call may read this many bytes."""
        ...

    async def before_write(self, size_bytes: int) -> None:
        """Return when one call may write this many bytes."""
        ...


class Unthrottled:
    """`Throttle` without limits."""

    async def before_read(self, size_bytes: int) -> None:
        """Go on."""

    async def before_write(self, size_bytes: int) -> None:
        """Go on."""
