"""Planted bug: streams and keys are made for partitions that are not there."""

from __future__ import annotations

import pytest
from ponor_controller.domains.streams import operations as streams
from ponor_controller.domains.topics import keys


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(streams, "require_tagged_rights", lambda *_: None)
    monkeypatch.setattr(keys, "require_key_rights", lambda *_: None)
