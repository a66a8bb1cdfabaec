"""Planted bug: a recovery deletes the slots of a log although a forced recovery of the controllers waits for its confirmation."""

from __future__ import annotations

import pytest
from s3stream.takeover import _Takeover


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    begin = _Takeover.run

    async def run(self: _Takeover) -> object:
        monkeypatch.setattr(self._manager, "may_delete_recovered", lambda: True)
        return await begin(self)

    monkeypatch.setattr(_Takeover, "run", run)
