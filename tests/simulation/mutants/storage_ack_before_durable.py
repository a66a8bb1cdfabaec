"""Planted bug: an append is acknowledged when it is handed to the write-ahead log."""

from __future__ import annotations

import asyncio

import pytest
from s3stream.group_commit import GroupCommit, OnDurable
from s3stream.open_stream import OpenStream
from s3stream.records import StreamRecord


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    add = GroupCommit.add

    def add_and_acknowledge(
        self: GroupCommit, stream: OpenStream, record: StreamRecord, size_bytes: int, on_durable: OnDurable
    ) -> None:
        add(self, stream, record, size_bytes, lambda _: None)
        asyncio.get_running_loop().call_soon(on_durable, None)

    monkeypatch.setattr(GroupCommit, "add", add_and_acknowledge)
